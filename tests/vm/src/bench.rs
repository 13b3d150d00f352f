//! The driver measured against the kernel's: closed loops of 4 KiB random reads over controllers
//! whose back end does nothing, in turns, in one guest.
//!
//! Both sides get controllers of one kind at the same time, so that nothing is bound anew between
//! the turns. Each figure goes to the host as a line `figure NAME key=value …`; emulation makes
//! absolute rates meaningless, ratios of turns that followed each other are what counts.

mod own;
mod rival;
mod turns;

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use lode_vfio::PciAddress;

use crate::host;
use own::Own;
use rival::{Completing, Rival};
use turns::{Sample, Spread};

/// Rates where every memory access of a device is translated, the kernel's devices' too: both
/// kinds of controllers at queue depths 1 and 32, the driver against the kernel's.
pub(crate) fn rates() -> Result<String> {
    measure_rates("read")
}

/// The same in a guest whose kernel has no translation for its own devices. The emulated device
/// works less for them; the driver's is translated as always.
pub(crate) fn untranslated_rates() -> Result<String> {
    measure_rates("untranslated")
}

fn measure_rates(name: &'static str) -> Result<String> {
    let mut worst = f64::INFINITY;
    for kind in [Kind::Plain, Kind::Shadow] {
        let mut arms = Arms::prepare(name, kind)?;
        for depth in DEPTHS {
            worst = worst.min(arms.measure(depth)?);
        }
        arms.own.close()?;
    }
    Ok(format!("the lowest of the median ratios is {worst:.2}"))
}

/// Instructions: the guest's clock counts them. How long the device takes is the host's business,
/// so that polls that found nothing are counted apart.
pub(crate) fn instructions() -> Result<String> {
    let mut found = Vec::new();
    for kind in [Kind::Plain, Kind::Shadow] {
        let mut own = Own::start(kind.own()?)?;
        for depth in DEPTHS {
            own.run(depth, COUNTED_OPERATIONS)?;
            let sample = own.run(depth, COUNTED_OPERATIONS)?;
            let busy = sample.busy_nanoseconds_each();
            host::figure(&format!(
                "vm.instructions.{}.qd{depth} instructions_per_io={busy:.1} \
                 waiting_instructions_per_io={:.1} doorbells_per_io={:.4}",
                kind.name(),
                sample.nanoseconds_each() - busy,
                sample.each(sample.doorbells)
            ));
            found.push(format!("{busy:.0} {} at {depth}", kind.name()));
        }
        own.close()?;
    }
    Ok(format!("instructions per read: {}", found.join(", ")))
}

/// The two kinds of controllers.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Without shadow doorbells.
    Plain,
    /// With them.
    Shadow,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Shadow => "shadow",
        }
    }

    /// The controller that the driver has.
    fn own(self) -> Result<PciAddress> {
        let address = match self {
            Self::Plain => "0000:00:10.0",
            Self::Shadow => "0000:00:11.0",
        };
        address.parse().context("an address")
    }

    /// The controller that the kernel has.
    fn rival(self) -> Result<PciAddress> {
        let address = match self {
            Self::Plain => "0000:00:12.0",
            Self::Shadow => "0000:00:13.0",
        };
        address.parse().context("an address")
    }
}

/// The driver and the two ways of the kernel's.
struct Arms {
    name: &'static str,
    kind: Kind,
    own: Own,
    polled: Rival,
    interrupted: Rival,
}

impl Arms {
    fn prepare(name: &'static str, kind: Kind) -> Result<Self> {
        let own = Own::start(kind.own()?)?;
        ensure!(
            own.uses_shadow_doorbells() == matches!(kind, Kind::Shadow),
            "shadow doorbells of the {} controller",
            kind.name()
        );
        let address = kind.rival()?;
        Ok(Self {
            name,
            kind,
            own,
            polled: Rival::new(address, Completing::Polled)?,
            interrupted: Rival::new(address, Completing::Interrupted)?,
        })
    }

    /// Measures at one depth; returns the median ratio to the kernel's best.
    fn measure(&mut self, depth: usize) -> Result<f64> {
        let operations = if depth == 1 { ALONE } else { MANY };
        let rounds = turns::play(self, ROUNDS, |arms, turn| match turn {
            0 => arms.own.run(depth, operations),
            1 => arms.polled.run(depth, operations),
            _ => arms.interrupted.run(depth, operations),
        })?;
        let rates = |arm: usize| turns::spread(rounds.iter().map(|round| round[arm].rate()));
        let (own, polled, interrupted) = (rates(0), rates(1), rates(2));
        let best = if polled.median >= interrupted.median {
            1
        } else {
            2
        };
        let ratio = turns::spread(
            rounds
                .iter()
                .map(|round| round[0].rate() / round[best].rate()),
        );
        host::figure(&self.line(depth, ratio, [own, polled, interrupted], &rounds)?);
        Ok(ratio.median)
    }

    fn line(
        &self,
        depth: usize,
        ratio: Spread,
        rates: [Spread; 3],
        rounds: &[[Sample; 3]],
    ) -> Result<String> {
        let mut line = format!(
            "vm.{}.{}.qd{depth} ratio={:.3} low={:.3} high={:.3}",
            self.name,
            self.kind.name(),
            ratio.median,
            ratio.low,
            ratio.high
        );
        let names = ["own", "kernel_polled", "kernel_interrupts"];
        for (name, rate) in names.into_iter().zip(rates) {
            write!(line, " {name}_thousand_per_s={:.2}", rate.median / 1e3)?;
        }
        let doorbells = rounds.iter().map(|round| round[0].each(round[0].doorbells));
        write!(
            line,
            " doorbells_per_io={:.4}",
            turns::spread(doorbells).median
        )?;
        Ok(line)
    }
}

const DEPTHS: [usize; 2] = [1, 32];
const ROUNDS: usize = 21;
/// Reads of one turn at depth 1, and at depth 32: a tenth of a second either way on an idle
/// machine, so that what disturbs one turn is likely to disturb its neighbours.
const ALONE: u64 = 1_000;
const MANY: u64 = 8_000;
const COUNTED_OPERATIONS: u64 = 32_000;
