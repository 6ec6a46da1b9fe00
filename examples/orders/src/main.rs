//! Places ten orders and shows what became of them.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = std::env::args().nth(1);
    let url = url.unwrap_or_else(|| "sqlite://./orders.db".to_owned());
    let summary = orders::run::run(&url, 10).await?;
    println!("what customers have spent:");
    for (customer, cents) in &summary.totals {
        println!("  {customer:8} {:>6}.{:02}", cents / 100, cents % 100);
    }
    let account = &summary.account;
    println!("confirmations sent: {}", summary.sent);
    println!(
        "events: {} accepted, {} delivered, {} dead-lettered, {} missing",
        account.accepted, account.delivered, account.dead_lettered, summary.unaccounted
    );
    for (type_name, count) in &summary.unhandled {
        println!("without a handler: {count} of type {type_name}, which wait for one");
    }
    Ok(())
}
