//! The textual form of a fault rule: `KEY=VALUE … -> ACTION[=VALUE]`.
//!
//! Keys: `on=command|register`, `queue=any|admin|io|N`, `opcode=NAME|0xNN`, `nsid=N`,
//! `lba=FIRST..END`, `nth=N`, `every=N`, `count=N`. Actions: `drop`, `lose`, `delay=DURATION`,
//! `duplicate`, `wrong_id`, `status=0xNNN`, `stuck_ready`, `fatal`, `all_ones=N`, `remove`.

use std::ops::Range;
use std::str::FromStr;

use lode_nvme_spec::{AdminOpcode, NvmOpcode, Status};
use lode_units::QueueId;

use super::{DeviceFault, FaultAction, FaultEvent, FaultMatch, FaultRule, QueueMatch};
use crate::error::EmulatorError;
use crate::spec::quantity::{duration, integer, narrow, positive, syntax};

impl FromStr for FaultRule {
    type Err = EmulatorError;

    fn from_str(text: &str) -> Result<Self, EmulatorError> {
        let Some((matches, action)) = text.split_once("->") else {
            return Err(syntax(text, "expected MATCHES -> ACTION"));
        };
        Ok(Self {
            matches: parse_matches(matches)?,
            action: parse_action(action.trim())?,
        })
    }
}

fn parse_matches(text: &str) -> Result<FaultMatch, EmulatorError> {
    let mut matches = FaultMatch::default();
    for part in text.split_whitespace() {
        let Some((key, value)) = part.split_once('=') else {
            return Err(syntax(part, "expected KEY=VALUE"));
        };
        match key {
            "on" => matches.event = parse_event(value)?,
            "queue" => matches.queue = parse_queue(value)?,
            "opcode" => matches.opcode = Some(parse_opcode(value)?),
            "nsid" => matches.namespace = Some(narrow(value)?),
            "lba" => matches.lba = Some(parse_range(value)?),
            "nth" => matches.nth = Some(positive(value)?),
            "every" => matches.every = Some(positive(value)?),
            "count" => matches.count = Some(positive(value)?),
            _ => {
                let reason = "expected one of on, queue, opcode, nsid, lba, nth, every, count";
                return Err(syntax(key, reason));
            }
        }
    }
    Ok(matches)
}

fn parse_event(value: &str) -> Result<FaultEvent, EmulatorError> {
    match value {
        "command" => Ok(FaultEvent::Command),
        "register" => Ok(FaultEvent::RegisterAccess),
        _ => Err(syntax(value, "expected command or register")),
    }
}

fn parse_queue(value: &str) -> Result<QueueMatch, EmulatorError> {
    Ok(match value {
        "any" => QueueMatch::Any,
        "admin" => QueueMatch::Admin,
        "io" => QueueMatch::Io,
        _ => QueueMatch::Id(QueueId::new(narrow(value)?)),
    })
}

fn parse_opcode(value: &str) -> Result<u8, EmulatorError> {
    Ok(match value {
        "flush" => NvmOpcode::Flush.raw(),
        "write" => NvmOpcode::Write.raw(),
        "read" => NvmOpcode::Read.raw(),
        "compare" => NvmOpcode::Compare.raw(),
        "write_zeroes" => NvmOpcode::WriteZeroes.raw(),
        "deallocate" => NvmOpcode::DatasetManagement.raw(),
        "verify" => NvmOpcode::Verify.raw(),
        "identify" => AdminOpcode::Identify.raw(),
        "abort" => AdminOpcode::Abort.raw(),
        "get_log_page" => AdminOpcode::GetLogPage.raw(),
        "create_sq" => AdminOpcode::CreateSubmissionQueue.raw(),
        "create_cq" => AdminOpcode::CreateCompletionQueue.raw(),
        "set_features" => AdminOpcode::SetFeatures.raw(),
        "get_features" => AdminOpcode::GetFeatures.raw(),
        _ => narrow(value)?,
    })
}

fn parse_range(value: &str) -> Result<Range<u64>, EmulatorError> {
    let range = match value.split_once("..") {
        Some((first, end)) => integer(first)?..integer(end)?,
        None => {
            let only = integer(value)?;
            only..only.saturating_add(1)
        }
    };
    if range.is_empty() {
        return Err(syntax(value, "expected FIRST..END with FIRST below END"));
    }
    Ok(range)
}

fn parse_action(text: &str) -> Result<FaultAction, EmulatorError> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let plain = |action| match value {
        None => Ok(action),
        Some(_) => Err(syntax(text, "this action takes no value")),
    };
    let needed = || value.ok_or_else(|| syntax(text, "this action needs a value"));
    match name {
        "drop" => plain(FaultAction::Drop),
        "lose" => plain(FaultAction::LoseCompletion),
        "duplicate" => plain(FaultAction::DuplicateCompletion),
        "wrong_id" => plain(FaultAction::WrongCommandId),
        "stuck_ready" => plain(FaultAction::Device(DeviceFault::StuckReady)),
        "fatal" => plain(FaultAction::Device(DeviceFault::FatalStatus)),
        "remove" => plain(FaultAction::Device(DeviceFault::Remove)),
        "delay" => Ok(FaultAction::Delay(duration(needed()?)?)),
        "status" => Ok(FaultAction::Status(Status::from_raw(narrow(needed()?)?))),
        "all_ones" => Ok(FaultAction::Device(DeviceFault::AllOnes(
            narrow(needed()?)?,
        ))),
        _ => Err(syntax(
            name,
            "expected one of drop, lose, delay, duplicate, wrong_id, status, stuck_ready, fatal, \
             all_ones, remove",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_full_rule_is_read() {
        let text = "on=command queue=2 opcode=read nsid=1 lba=0..8 nth=3 every=2 count=5 -> \
                    status=0x281";
        let rule: FaultRule = text.parse().expect("a rule");
        let expected = FaultMatch {
            event: FaultEvent::Command,
            queue: QueueMatch::Id(QueueId::new(2)),
            opcode: Some(2),
            namespace: Some(1),
            lba: Some(0..8),
            nth: Some(3),
            every: Some(2),
            count: Some(5),
        };
        assert_eq!(rule.matches, expected);
        assert_eq!(rule.action, FaultAction::Status(Status::from_raw(0x281)));
    }

    #[test]
    fn every_action_has_a_word() {
        for (text, action) in [
            ("drop", FaultAction::Drop),
            ("lose", FaultAction::LoseCompletion),
            ("delay=5ms", FaultAction::Delay(Duration::from_millis(5))),
            ("duplicate", FaultAction::DuplicateCompletion),
            ("wrong_id", FaultAction::WrongCommandId),
            ("stuck_ready", FaultAction::Device(DeviceFault::StuckReady)),
            ("fatal", FaultAction::Device(DeviceFault::FatalStatus)),
            ("all_ones=7", FaultAction::Device(DeviceFault::AllOnes(7))),
            ("remove", FaultAction::Device(DeviceFault::Remove)),
        ] {
            let rule: FaultRule = format!("-> {text}").parse().expect("a rule");
            assert_eq!(rule.action, action);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("opcode=read", "opcode=read"),
            ("opcode=reed -> drop", "reed"),
            ("lba=8..8 -> drop", "8..8"),
            ("colour=red -> drop", "colour"),
            ("nth=0 -> drop", "0"),
            ("-> explode", "explode"),
            ("-> drop=1", "drop=1"),
            ("-> delay", "delay"),
            ("-> status=0x12345", "0x12345"),
            ("nth -> drop", "nth"),
        ] {
            let outcome = text.parse::<FaultRule>();
            let Err(EmulatorError::Syntax { text: named, .. }) = outcome else {
                panic!("{text:?} is refused");
            };
            assert_eq!(named, part);
        }
    }
}
