//! The pool over model disks: smoke tests, faults, and crashes by the thousand.

mod basics;
mod disk;
mod world;
