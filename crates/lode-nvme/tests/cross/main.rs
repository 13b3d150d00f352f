//! The driver against the emulated controller, in virtual time: they share only the bytes of
//! the specification.

mod bring_up;
mod data;
mod detached;
mod events;
mod hang;
mod interrupts;
mod removal;
mod replaced;
mod reset;
mod rig;
mod rings;
mod schedule;
mod threads;
