//! The engine over a pool on a memory device with a volatile cache, driven step by step.

mod device;
mod ends;
mod fairness;
mod pressure;
mod rig;
mod sharing;
mod throttling;

mod barriers;
mod cores;
mod durability;
mod export;
mod failures;
mod fleet;
mod interleavings;
mod transfers;
mod volumes;
