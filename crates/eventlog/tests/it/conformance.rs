//! The promises of the Event Log API, each kept on every database.

mod books;
mod fields;
mod outage;
mod posts;
mod reads;
mod removal;
