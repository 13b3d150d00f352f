//! The way from awake to asleep, in the order that loses no wake-up.
//!
//! The order is data, so that the proof below runs over the very list that the poller follows.

/// A step on the way to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Forget the signals seen so far: what they announced, the next look finds.
    Forget,
    /// Tell the devices of every completion that was found: one that waits to hear of the last
    /// ones need not signal the next.
    Acknowledge,
    /// Have completions signal from now on.
    Arm,
    /// Poll once more; whatever is found calls the sleep off.
    Look,
    /// Sleep until a signal. One that came since [`Step::Forget`] ends the sleep at once.
    Sleep,
}

/// The steps, first to last.
pub(super) const FALLING_ASLEEP: [Step; 5] = [
    Step::Forget,
    Step::Acknowledge,
    Step::Arm,
    Step::Look,
    Step::Sleep,
];

#[cfg(test)]
mod tests;
