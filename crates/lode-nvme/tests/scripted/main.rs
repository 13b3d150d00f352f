//! The driver against a device that does exactly what a test tells it, also what no honest
//! controller would.

mod device;
mod foreign;
mod identify;
mod limits;
mod registers;
mod wire;
