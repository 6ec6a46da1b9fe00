//! The engine stepped by hand, on a simulated disk.

mod administration;
mod asides;
mod crashes;
mod damage;
mod faults;
mod fixture;
mod forged;
mod full_starts;
mod harness;
mod havoc;
mod lives;
mod losses;
mod manifests;
mod quiet;
mod recovery;
mod repairs;
mod rules;
mod segments;
mod traces;
