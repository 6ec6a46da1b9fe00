//! The engine stepped by hand, on a simulated disk.

mod crashes;
mod desk;
mod faults;
mod recovery;
mod rules;
