//! A handler that ships orders, and the binding around it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use tidegate_connector::{
    Binding, BindingOptions, BoundHandler, Connector, ConsumedRecord, HandlerAnswer,
    HandlerFailure, RecordHandler,
};
use tidegate_core::env::Env;
use tidegate_core::{Code, Failure, Topic};
use tidegate_log::{Append, EmbeddedConfig, EmbeddedLog, Log, Record, TopicConfig};

/// An order, as it stands in the topic.
#[derive(Debug, Deserialize)]
struct Order {
    number: u64,
    address: Option<String>,
}

/// Ships orders.
#[derive(Debug, Default)]
struct Shipping {
    shipped: Arc<AtomicU64>,
}

impl RecordHandler for Shipping {
    async fn handle(&self, record: &ConsumedRecord) -> HandlerAnswer {
        let value = record.value().map_or(&b""[..], |value| &value[..]);
        let order: Order = serde_json::from_slice(value)
            .map_err(|error| HandlerFailure::undecodable(error.to_string()))?;
        if order.address.is_none() {
            let code = Code::from_static("order.no-address");
            return Err(Failure::permanent(code, "nobody knows where to ship it").into());
        }
        if order.number % 10 == 9 && record.attempt() == 1 {
            let code = Code::from_static("service.unavailable");
            return Err(Failure::transient(code, "the carrier does not answer").into());
        }
        // A carrier would be given the event id, which is the same at every delivery.
        self.shipped.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Sends thirty orders, of which two have no address, and ships them. Returns how many were shipped, and how
/// many are dead letters.
///
/// # Errors
/// The directory cannot be used.
pub async fn ship(dir: &Path) -> Result<(u64, i64), Box<dyn std::error::Error>> {
    let env = Env::system();
    let log = EmbeddedLog::open(&env, EmbeddedConfig::new(dir))?;
    let topic = Topic::new("orders")?;
    log.create_topic(&topic, TopicConfig::new(4)).await?;
    let orders = (0..30).map(|number| {
        let order = match number % 15 {
            7 => format!(r#"{{"number":{number}}}"#),
            _ => format!(r#"{{"number":{number},"address":"Dock {number}"}}"#),
        };
        Append::new(
            topic.clone(),
            Record::new(order).key(format!("customer-{}", number % 5)),
        )
    });
    log.append(orders.collect()).await?;
    let connector = Connector::new(Arc::new(log.clone()), &env);
    let options = BindingOptions::new("shipping", "orders", "shipping")?;
    let (dlt, group) = (options.dlt_topic()?, options.group.clone());
    let handler = Shipping::default();
    let shipped = Arc::clone(&handler.shipped);
    connector.register(Binding::new(options, BoundHandler::new(handler)))?;
    connector.start("shipping").await?;
    // Everything is settled once the group has passed every record.
    loop {
        let there = log.describe(&topic).await?.partitions;
        let mut is_done = true;
        for partition in there {
            let at = tidegate_log::TopicPartition::new(topic.clone(), partition.partition.0);
            let committed = log.committed(&group, &[at]).await?.remove(0);
            is_done &=
                partition.end.0 == 0 || committed.is_some_and(|held| held.next == partition.end);
        }
        if is_done {
            break;
        }
        env.clock.sleep(Duration::from_millis(10)).await;
    }
    connector.shutdown().await;
    let letters = log.describe(&dlt).await?.partitions;
    let letters = letters.iter().map(|partition| partition.end.0).sum();
    log.close().await;
    Ok((shipped.load(Ordering::Relaxed), letters))
}
