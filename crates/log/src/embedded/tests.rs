//! The engine stepped by hand, on a simulated disk.

mod crashes;
mod damage;
mod desk;
mod faults;
mod fixture;
mod losses;
mod recovery;
mod rules;
mod traces;
