//! The engine stepped by hand, on a simulated disk.

mod crashes;
mod damage;
mod desk;
mod faults;
mod fixture;
mod recovery;
mod rules;
