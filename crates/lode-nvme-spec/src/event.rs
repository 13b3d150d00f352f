//! What the completion of an Asynchronous Event Request tells (Base 2.0 §5.2.1).

use crate::bits::{byte_at, field};
use crate::open_enum::open_enum;

/// Dword 0 of the completion (figure 146): bits 2:0 type, 15:8 information, 23:16 log page to
/// read in order to re-arm the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// What kind of event.
    pub event: EventType,
    /// The log page that says more; reading it clears the event.
    pub log_page: u8,
}

/// The event type with its information (figures 147 to 150).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Type 0: an error not tied to a command.
    Error(ErrorEvent),
    /// Type 1: SMART / health status.
    Health(HealthEvent),
    /// Type 2: a notice.
    Notice(NoticeEvent),
    /// Type 3 to 7: specific to a command set or vendor, or reserved.
    Other {
        /// The event type: 3 to 7.
        kind: u8,
        /// The event information.
        information: u8,
    },
}

open_enum! {
    /// The information of an error event (figure 147).
    ErrorEvent {
        /// A write to the doorbell of a queue that does not exist.
        InvalidDoorbell = 0x00,
        /// A doorbell value that is not possible.
        InvalidDoorbellValue = 0x01,
        /// Diagnostic failure.
        DiagnosticFailure = 0x02,
        /// Persistent internal error.
        PersistentInternal = 0x03,
        /// Transient internal error.
        TransientInternal = 0x04,
        /// A firmware image could not be loaded.
        FirmwareImageLoad = 0x05,
    }
}

open_enum! {
    /// The information of a health event (figure 148).
    HealthEvent {
        /// The subsystem's reliability is degraded.
        Reliability = 0x00,
        /// A temperature threshold was crossed.
        Temperature = 0x01,
        /// Spare capacity fell below its threshold.
        Spare = 0x02,
    }
}

open_enum! {
    /// The information of a notice (figure 149).
    NoticeEvent {
        /// Namespaces were added, removed or changed.
        NamespaceAttributes = 0x00,
        /// Firmware is being activated.
        FirmwareActivation = 0x01,
        /// The telemetry log changed.
        Telemetry = 0x02,
        /// Asymmetric access changed.
        AsymmetricAccess = 0x03,
    }
}

impl AsyncEvent {
    /// Decodes dword 0 of the completion.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let dword = dword as u64;
        let information = byte_at(dword, 8);
        let event = match field(dword, 0, 3) {
            0 => EventType::Error(ErrorEvent::from_raw(information)),
            1 => EventType::Health(HealthEvent::from_raw(information)),
            2 => EventType::Notice(NoticeEvent::from_raw(information)),
            kind => EventType::Other { kind, information },
        };
        Self {
            event,
            log_page: byte_at(dword, 16),
        }
    }

    /// Encodes dword 0 of the completion.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        let (kind, information) = match self.event {
            EventType::Error(event) => (0, event.raw()),
            EventType::Health(event) => (1, event.raw()),
            EventType::Notice(event) => (2, event.raw()),
            EventType::Other { kind, information } => (kind & 7, information),
        };
        kind as u32 | (information as u32) << 8 | (self.log_page as u32) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_comes_back_as_it_was_sent() {
        for kind in 0..8_u32 {
            for information in 0..=255_u32 {
                let dword = kind | information << 8 | 0x02 << 16;
                assert_eq!(AsyncEvent::from_dword(dword).to_dword(), dword);
            }
        }
        let event = AsyncEvent::from_dword(0x0004_0002);
        assert_eq!(
            event.event,
            EventType::Notice(NoticeEvent::NamespaceAttributes)
        );
        assert_eq!(event.log_page, 4);
    }
}
