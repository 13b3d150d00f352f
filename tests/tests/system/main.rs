//! The whole system, seen by its clients: each test starts a real daemon of its own.

mod bad_input;
mod clients;
mod damaged_pool;
mod data;
mod full_pool;
mod image;
mod life;
mod many_cores;
mod observability;
mod retry;
mod sharing;
mod vfio_user;
mod volumes;
