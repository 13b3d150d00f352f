//! What is wrong with a configuration that parses: everything at once, each with its place.

use std::collections::BTreeSet;
use std::fmt;

use lode_units::limits::{NAME_LENGTH_MAX_BYTES, POOL_DEVICES_MAX};

use super::cores::available_processors;
use super::{Config, Memory, Pool, Server};
use crate::device_name::DeviceSpec;

/// Something in a configuration that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The key.
    pub(crate) place: String,
    /// What is wrong with it.
    pub(crate) reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.reason)
    }
}

impl Config {
    /// Every problem that can be seen without touching a device.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        check_server(&self.server, &mut problems);
        if let Some(reason) = self.core.cores.problem(&available_processors()) {
            let place = "core.cores".to_owned();
            problems.push(Problem { place, reason });
        }
        check_memory(&self.memory, &mut problems);
        let mut names = BTreeSet::new();
        let mut devices = BTreeSet::new();
        for (index, pool) in self.pools.iter().enumerate() {
            let place = format!("pool[{index}]");
            check_pool(&place, pool, &mut problems);
            if !names.insert(&pool.name) {
                let reason = format!("{:?} is the name of an earlier pool", pool.name);
                problems.push(Problem {
                    place: format!("{place}.name"),
                    reason,
                });
            }
            for device in pool
                .devices
                .iter()
                .filter_map(|device| DeviceSpec::identity(device))
            {
                if !devices.insert(device.clone()) {
                    let reason = format!("{device} is named twice");
                    problems.push(Problem {
                        place: format!("{place}.devices"),
                        reason,
                    });
                }
            }
        }
        problems
    }
}

fn check_server(server: &Server, problems: &mut Vec<Problem>) {
    if server.grpc.is_empty() && server.unix.is_none() {
        let reason = "no address and no Unix socket: no client could connect".to_owned();
        problems.push(Problem {
            place: "server.grpc".to_owned(),
            reason,
        });
    }
    let remote = |listen: &super::Listen| !listen.is_loopback();
    if server.allow_remote_without_auth {
        return;
    }
    let grpc = server.grpc.iter().copied().filter(|listen| remote(listen));
    let grpc = grpc.map(|listen| ("server.grpc", listen));
    let http = Some(server.http)
        .filter(remote)
        .map(|listen| ("server.http", listen));
    for (place, listen) in grpc.chain(http) {
        let reason = format!(
            "{listen} is reachable from other machines, and nothing asks who calls; set \
             server.allow_remote_without_auth = true to do it all the same"
        );
        problems.push(Problem {
            place: place.to_owned(),
            reason,
        });
    }
}

fn check_memory(memory: &Memory, problems: &mut Vec<Problem>) {
    let counts = [
        ("memory.small_buffers", memory.small_buffers),
        ("memory.medium_buffers", memory.medium_buffers),
        ("memory.large_buffers", memory.large_buffers),
    ];
    for (place, count) in counts {
        if !(1..=BUFFERS_MAX).contains(&count) {
            let reason = format!("{count} is not from 1 to {BUFFERS_MAX}");
            problems.push(Problem {
                place: place.to_owned(),
                reason,
            });
        }
    }
}

fn check_pool(place: &str, pool: &Pool, problems: &mut Vec<Problem>) {
    let length = pool.name.len();
    if length == 0 || length > NAME_LENGTH_MAX_BYTES || pool.name.chars().any(char::is_control) {
        let reason =
            format!("a name has 1 to {NAME_LENGTH_MAX_BYTES} bytes and no control character");
        problems.push(Problem {
            place: format!("{place}.name"),
            reason,
        });
    }
    let count = pool.devices.len();
    if !(1..=POOL_DEVICES_MAX).contains(&count) {
        let reason = format!("a pool has 1 to {POOL_DEVICES_MAX} devices, not {count}");
        problems.push(Problem {
            place: format!("{place}.devices"),
            reason,
        });
    }
    for (index, device) in pool.devices.iter().enumerate() {
        if let Err(reason) = device.parse::<DeviceSpec>() {
            let place = format!("{place}.devices[{index}]");
            problems.push(Problem { place, reason });
        }
    }
}

const BUFFERS_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let config = Config::parse(text).expect("it parses");
        config
            .problems()
            .iter()
            .map(|problem| problem.place.clone())
            .collect()
    }

    #[test]
    fn the_defaults_have_no_problem() {
        assert_eq!(problems(""), Vec::<String>::new());
        assert_eq!(
            Config::dev(std::path::Path::new("/somewhere")).problems(),
            []
        );
    }

    #[test]
    fn every_problem_is_told_at_once_with_its_place() {
        let text = "
            [server]
            grpc = ['0.0.0.0:7070']
            http = '[::]:9464'
            [core]
            cores = [0, 0]
            [memory]
            small_buffers = 0
            [[pool]]
            name = ''
            devices = []
            [[pool]]
            name = 'a'
            devices = ['file:/x?size=1GiB', 'tape:/dev/st0']
            [[pool]]
            name = 'a'
            devices = ['file:/x?size=2GiB']
            [[pool]]
            name = 'b'
            devices = ['vfio:0000:01:00.0?namespace=2', 'vfio:nvme0', 'vfio:01:00.0?namespace=2']
        ";
        let expected = [
            "server.grpc",
            "server.http",
            "core.cores",
            "memory.small_buffers",
            "pool[0].name",
            "pool[0].devices",
            "pool[1].devices[1]",
            "pool[2].name",
            "pool[2].devices",
            "pool[3].devices[1]",
            "pool[3].devices",
        ];
        assert_eq!(problems(text), expected);
    }

    #[test]
    fn remote_addresses_are_allowed_in_words() {
        let text = "[server]\ngrpc = ['0.0.0.0:7070']\nallow_remote_without_auth = true\n";
        assert_eq!(problems(text), Vec::<String>::new());
    }
}
