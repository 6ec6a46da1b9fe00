#![doc = include_str!("../README.md")]

mod codes;
mod coherence;
mod config;
mod defaults;
mod findings;
mod imports;
mod interpolate;
pub mod keys;
mod load;
mod overrides;
mod path;
mod problem;
mod read;
mod reference;
mod render;
mod schema;
mod secret;
mod show;
mod suggest;
mod tree;
mod units;
mod value;
mod veil;

pub use config::Config;
pub use findings::MAX_PROBLEMS;
pub use imports::{Files, MAX_FILES, MAX_IMPORT_DEPTH};
pub use keys::Part;
pub use load::{Inputs, Loaded, Source, load, load_with};
pub use problem::{Position, Problem, Problems};
pub use reference::defaults_text;
pub use render::{Color, Severity};
pub use schema::schema;
pub use secret::{Secret, shown_address};
pub use show::{Origins, Shown};
pub use tree::{MAX_DEPTH, MAX_FILE_SIZE, MAX_NODES};
pub use value::Origin;
