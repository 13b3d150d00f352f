//! The pool over model disks: smoke tests, faults, and crashes by the thousand.

mod basics;
mod crash;
mod disk;
mod faults;
mod forged;
mod fragments;
mod limits;
mod unreadable;
mod world;
