//! The crates, their layers, and the direction in which they may depend on one another.
//!
//! A crate depends on lower layers only. The exceptions are listed with their reason, and an
//! exception that nobody uses any more is itself an error, so that the list stays true.
//!
//! 1. Normal and build dependencies point to a lower layer, or are listed in [`SIDEWAYS`].
//! 2. Test dependencies may also point sideways or up where [`FOR_TESTS`] lists them.
//! 3. Only the programs and the layer above them name a concrete back end ([`Crate::is_back_end`]).
//! 4. Asynchronous runtimes start in layer 4.

use crate::workspace::{Dependency, DependencyKind, Package, Workspace};

/// What is fixed about one crate.
#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) name: &'static str,
    pub(crate) layer: u8,
    /// May hold `unsafe`: the hardware seam, the kernel's device interface, a file's mapping.
    pub(crate) may_be_unsafe: bool,
    /// A concrete device behind the seams.
    pub(crate) is_back_end: bool,
}

const fn member(name: &'static str, layer: u8) -> Crate {
    Crate {
        name,
        layer,
        may_be_unsafe: false,
        is_back_end: false,
    }
}

/// Every crate of the workspace, lowest layer first.
pub(crate) const CRATES: &[Crate] = &[
    member("lode-units", 0),
    member("lode-stats", 0),
    Crate {
        may_be_unsafe: true,
        ..member("lode-bus", 1)
    },
    member("lode-nvme-spec", 1),
    member("lode-block", 1),
    Crate {
        may_be_unsafe: true,
        is_back_end: true,
        ..member("lode-vfio", 2)
    },
    Crate {
        is_back_end: true,
        ..member("lode-vfio-user", 2)
    },
    member("lode-nvme", 2),
    Crate {
        may_be_unsafe: true,
        is_back_end: true,
        ..member("lode-nvme-emu", 2)
    },
    member("lode-extent", 2),
    member("lode-engine", 3),
    member("lode-reactor", 4),
    member("lode-api", 4),
    member("lode-server", 5),
    member("lodestored", PROGRAM_LAYER),
    member("lodectl", PROGRAM_LAYER),
    member("lode-tests", 7),
    member("lode-bench", 7),
    member("lode-sim", 7),
    member("lode-vm-guest", 7),
    member("xtask", 7),
];

/// The layer of the programs, which put the back ends together with everything else.
const PROGRAM_LAYER: u8 = 6;

/// The lowest layer that may know an asynchronous runtime.
const RUNTIME_LAYER: u8 = 4;

const RUNTIMES: &[&str] = &[
    "tokio",
    "tokio-stream",
    "tokio-util",
    "tonic",
    "hyper",
    "hyper-util",
];

/// A dependency inside one layer.
#[derive(Debug)]
struct Exception {
    from: &'static str,
    to: &'static str,
    reason: &'static str,
}

const SIDEWAYS: &[Exception] = &[Exception {
    from: "lode-block",
    to: "lode-bus",
    reason: "a request carries the seam's DMA memory",
}];

const FOR_TESTS: &[Exception] = &[
    Exception {
        from: "lode-nvme",
        to: "lode-nvme-emu",
        reason: "the driver is tested against the emulated controller",
    },
    Exception {
        from: "lode-vfio-user",
        to: "lode-nvme",
        reason: "the transport is tested with the driver above it",
    },
    Exception {
        from: "lode-vfio-user",
        to: "lode-nvme-emu",
        reason: "the transport is tested with a controller to serve",
    },
];

/// Every way in which the workspace breaks the rules above, one sentence each; empty when none.
pub(crate) fn violations(workspace: &Workspace) -> Vec<String> {
    let mut found = Vec::new();
    for package in &workspace.packages {
        let Some(from) = find(&package.name) else {
            found.push(format!(
                "{} has no layer in xtask/src/layers.rs",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            found.extend(violation(from, dependency));
        }
    }
    found.extend(unused(SIDEWAYS, workspace, |kind| {
        kind != DependencyKind::Development
    }));
    found.extend(unused(FOR_TESTS, workspace, |kind| {
        kind == DependencyKind::Development
    }));
    found
}

fn violation(from: &Crate, dependency: &Dependency) -> Option<String> {
    let is_for_tests = dependency.kind == DependencyKind::Development;
    if RUNTIMES.contains(&dependency.name.as_str()) {
        return (from.layer < RUNTIME_LAYER && !is_for_tests).then(|| {
            format!(
                "{} (layer {}) depends on {}: runtimes start in layer {RUNTIME_LAYER}",
                from.name, from.layer, dependency.name
            )
        });
    }
    let to = find(&dependency.name)?;
    if to.name == from.name && is_for_tests {
        // A crate's own tests switch one of its features on.
        return None;
    }
    if to.layer >= from.layer {
        let is_listed = lists(SIDEWAYS, from, to) || is_for_tests && lists(FOR_TESTS, from, to);
        return (!is_listed).then(|| {
            format!(
                "{} (layer {}) depends on {} (layer {}): dependencies point down",
                from.name, from.layer, to.name, to.layer
            )
        });
    }
    (to.is_back_end && from.layer < PROGRAM_LAYER && !is_for_tests).then(|| {
        format!(
            "{} names the back end {}: only the programs do",
            from.name, to.name
        )
    })
}

/// The exceptions whose dependency is gone although both crates exist.
fn unused(
    exceptions: &[Exception],
    workspace: &Workspace,
    applies_to: impl Fn(DependencyKind) -> bool,
) -> Vec<String> {
    let is_used = |exception: &Exception, package: &Package| {
        package
            .dependencies
            .iter()
            .any(|dependency| dependency.name == exception.to && applies_to(dependency.kind))
    };
    exceptions
        .iter()
        .filter(|exception| workspace.package(exception.to).is_some())
        .filter(|exception| {
            workspace
                .package(exception.from)
                .is_some_and(|package| !is_used(exception, package))
        })
        .map(|exception| {
            format!(
                "the exception {} -> {} ({}) is not used any more",
                exception.from, exception.to, exception.reason
            )
        })
        .collect()
}

fn lists(exceptions: &[Exception], from: &Crate, to: &Crate) -> bool {
    exceptions
        .iter()
        .any(|exception| exception.from == from.name && exception.to == to.name)
}

fn find(name: &str) -> Option<&'static Crate> {
    CRATES.iter().find(|candidate| candidate.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(name: &str, kind: DependencyKind) -> Dependency {
        Dependency {
            name: name.to_owned(),
            kind,
        }
    }

    fn judged(from: &str, to: &str, kind: DependencyKind) -> Option<String> {
        let from = find(from).expect("a crate of the table");
        violation(from, &dependency(to, kind))
    }

    #[test]
    fn the_workspace_depends_downwards_only() {
        let workspace = Workspace::load().expect("cargo reads its own workspace");
        assert_eq!(violations(&workspace), Vec::<String>::new());
    }

    #[test]
    fn an_upward_or_sideways_dependency_is_found() {
        assert!(judged("lode-units", "lode-engine", DependencyKind::Normal).is_some());
        assert!(judged("lode-nvme", "lode-nvme-emu", DependencyKind::Normal).is_some());
        assert!(judged("lode-nvme-emu", "lode-nvme", DependencyKind::Build).is_some());
        assert!(judged("lode-nvme-emu", "lode-nvme", DependencyKind::Development).is_some());
        assert!(judged("lodectl", "lodestored", DependencyKind::Normal).is_some());
    }

    #[test]
    fn a_listed_exception_is_accepted_for_its_kind_only() {
        assert_eq!(
            judged("lode-api", "lode-api", DependencyKind::Development),
            None
        );
        assert_eq!(
            judged("lode-block", "lode-bus", DependencyKind::Normal),
            None
        );
        assert_eq!(
            judged("lode-nvme", "lode-nvme-emu", DependencyKind::Development),
            None
        );
    }

    #[test]
    fn a_back_end_is_named_by_the_programs_only() {
        assert!(judged("lode-server", "lode-nvme-emu", DependencyKind::Normal).is_some());
        assert_eq!(
            judged("lode-engine", "lode-nvme-emu", DependencyKind::Development),
            None
        );
        assert_eq!(
            judged("lodestored", "lode-nvme-emu", DependencyKind::Normal),
            None
        );
    }

    #[test]
    fn a_runtime_below_its_layer_is_found() {
        assert!(judged("lode-engine", "tokio", DependencyKind::Normal).is_some());
        assert_eq!(
            judged("lode-reactor", "tokio", DependencyKind::Normal),
            None
        );
        assert_eq!(
            judged("lode-engine", "thiserror", DependencyKind::Normal),
            None
        );
    }

    #[test]
    fn an_exception_without_its_dependency_is_reported() {
        let workspace = Workspace {
            root: "/".into(),
            target: "/".into(),
            packages: ["lode-block", "lode-bus"]
                .map(|name| Package {
                    name: name.to_owned(),
                    dependencies: Vec::new(),
                })
                .into(),
        };
        let found = violations(&workspace);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found.iter().all(|sentence| sentence.contains("not used")));
    }

    #[test]
    fn a_crate_without_a_layer_is_reported() {
        let workspace = Workspace {
            root: "/".into(),
            target: "/".into(),
            packages: vec![Package {
                name: "lode-newcomer".to_owned(),
                dependencies: Vec::new(),
            }],
        };
        assert!(
            violations(&workspace)
                .iter()
                .any(|sentence| sentence.contains("no layer"))
        );
    }
}
