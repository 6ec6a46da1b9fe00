//! Ships thirty orders of an embedded log.
#![expect(clippy::print_stdout, reason = "printing is what this is for")]

use std::path::PathBuf;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args()
        .nth(1)
        .map_or_else(|| PathBuf::from("./data"), PathBuf::from);
    let (shipped, letters) = shipping::ship(&dir).await?;
    println!("shipped {shipped} orders, {letters} dead letters");
    Ok(())
}
