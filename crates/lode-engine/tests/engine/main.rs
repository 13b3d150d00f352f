//! The engine over a pool on a memory device with a volatile cache, driven step by step.

mod device;
mod rig;

mod barriers;
mod cores;
mod durability;
mod failures;
mod fleet;
mod interleavings;
mod transfers;
mod volumes;
