//! The states of a controller.

/// Where a controller stands (Base 2.0 §3.5 and §3.6).
///
/// ```text
/// Created ─► Probing ─► Disabling ─► Enabling ─► Starting ─► Ready
///                         ▲  ▲          │           │          │
///                         │  └──────────┴── reset ──┴──────────┤
///                         └─ function reset                    ▼
///                                                  ShuttingDown ─► Stopping ─► Stopped
/// any but Stopped ─► Gone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControllerState {
    /// Nothing was done yet.
    Created,
    /// The capabilities are being read.
    Probing,
    /// CC.EN is 0; CSTS.RDY = 0 is awaited.
    Disabling,
    /// CC.EN is 1; CSTS.RDY = 1 is awaited.
    Enabling,
    /// Admin commands find out what the controller is and set it up.
    Starting,
    /// In use.
    Ready,
    /// CC.SHN is set; CSTS.SHST = complete is awaited.
    ShuttingDown,
    /// CC.EN is 0 after a shutdown; CSTS.RDY = 0 is awaited.
    Stopping,
    /// Shut down.
    Stopped,
    /// Failed for good.
    Gone,
}

impl ControllerState {
    /// Its name in errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Probing => "probing",
            Self::Disabling => "disabling",
            Self::Enabling => "enabling",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::ShuttingDown => "shutting down",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Gone => "gone",
        }
    }

    /// Whether nothing follows.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Stopped | Self::Gone)
    }

    /// Whether `next` may follow.
    pub(crate) const fn may_become(self, next: Self) -> bool {
        use ControllerState as S;
        match self {
            S::Created => matches!(next, S::Probing | S::Stopped | S::Gone),
            S::Probing => matches!(next, S::Disabling | S::Stopping | S::Gone),
            S::Disabling => matches!(next, S::Disabling | S::Enabling | S::Stopping | S::Gone),
            S::Enabling => matches!(next, S::Disabling | S::Starting | S::Stopping | S::Gone),
            S::Starting => matches!(next, S::Disabling | S::Ready | S::Stopping | S::Gone),
            S::Ready => matches!(next, S::Disabling | S::ShuttingDown | S::Gone),
            S::ShuttingDown => matches!(next, S::Stopping | S::Gone),
            S::Stopping => matches!(next, S::Stopped | S::Gone),
            S::Stopped | S::Gone => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ControllerState as S;

    const ALL: [S; 10] = [
        S::Created,
        S::Probing,
        S::Disabling,
        S::Enabling,
        S::Starting,
        S::Ready,
        S::ShuttingDown,
        S::Stopping,
        S::Stopped,
        S::Gone,
    ];

    #[test]
    fn every_state_but_the_ends_may_fail_and_the_ends_lead_nowhere() {
        for state in ALL {
            assert_eq!(state.may_become(S::Gone), !state.is_end(), "{state:?}");
            assert!(!state.is_end() || ALL.iter().all(|next| !state.may_become(*next)));
        }
    }

    #[test]
    fn ready_is_reached_only_through_every_step_of_bring_up() {
        for (state, next) in [
            (S::Created, S::Probing),
            (S::Probing, S::Disabling),
            (S::Disabling, S::Enabling),
            (S::Enabling, S::Starting),
            (S::Starting, S::Ready),
        ] {
            let before: Vec<_> = ALL.iter().filter(|from| from.may_become(next)).collect();
            assert!(state.may_become(next));
            assert!(next == S::Disabling || before == [&state], "{next:?}");
        }
    }
}
