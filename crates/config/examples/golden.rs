//! Prints what the golden files hold, to write them anew after the table has changed:
//!
//! ```text
//! cargo run -q -p tidegate-config --example golden -- defaults > crates/config/default.yaml
//! cargo run -q -p tidegate-config --example golden -- keys > crates/config/tests/golden/keys.txt
//! cargo run -q -p tidegate-config --example golden -- show > crates/config/tests/golden/show.yaml
//! ```
#![expect(clippy::print_stdout, reason = "printing is what this is for")]

use tidegate_config::{Inputs, Origins, defaults_text, keys, load};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("defaults") => print!("{}", defaults_text()),
        Some("keys") => {
            for listed in keys::all() {
                println!("{listed}");
            }
        }
        Some("show") => print!(
            "{}",
            load(&Inputs::default()).config.to_yaml(Origins::Hidden)
        ),
        _ => println!("say one of: defaults, keys, show"),
    }
}
