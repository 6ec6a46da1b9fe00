//! The shop: the orders, and what the world around the queue knows of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tidegate_core::EventId;
use tidegate_core::env::{Entropy, Stream};
use tidegate_queue::QueueEvent;

use super::TallyRow;

/// How many customers there are; orders of one are handled one after the other.
const CUSTOMERS: u64 = 40;
/// One order in so many is taken back before it is committed.
const WITHDRAWN_ONE_IN: u64 = 9;
/// One order in so many has no address, and can never be shipped.
const UNDELIVERABLE_ONE_IN: u64 = 15;
/// One order in so many meets a card service that does not answer at first.
const UNLUCKY_ONE_IN: u64 = 5;

/// An order was placed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct OrderPlaced {
    pub(super) order: u64,
    pub(super) customer: String,
    pub(super) address: Option<String>,
    /// How often the card service does not answer for it.
    pub(super) card_failures: u32,
    #[serde(skip)]
    is_withdrawn: bool,
}

impl OrderPlaced {
    /// Whether the shop takes it back before it is committed.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn
    }
}

impl QueueEvent for OrderPlaced {
    const TYPE: &'static str = "OrderPlaced";

    fn key(&self) -> Option<String> {
        Some(self.customer.clone())
    }
}

/// The order was paid: published by the handler that bills it, together with its success.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PaymentTaken {
    pub(super) order: u64,
}

impl QueueEvent for PaymentTaken {
    const TYPE: &'static str = "PaymentTaken";
}

/// Makes up orders.
#[derive(Debug)]
pub(super) struct Shop {
    entropy: Box<dyn Entropy>,
    orders: u64,
}

impl Shop {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            entropy: Box::new(Stream::new(seed)),
            orders: 0,
        }
    }

    pub(super) fn next_order(&mut self) -> OrderPlaced {
        self.orders += 1;
        let mut one_in = |n: u64| self.entropy.below(n) == 0;
        let is_withdrawn = one_in(WITHDRAWN_ONE_IN);
        let is_undeliverable = one_in(UNDELIVERABLE_ONE_IN);
        let is_unlucky = one_in(UNLUCKY_ONE_IN);
        let failures = 1 + u32::from(one_in(3));
        OrderPlaced {
            order: self.orders,
            customer: format!("customer-{}", self.entropy.below(CUSTOMERS)),
            address: (!is_undeliverable).then(|| "1 Harbor Street".to_owned()),
            card_failures: if is_unlucky { failures } else { 0 },
            is_withdrawn,
        }
    }
}

/// The knowledge of the world around the queue: the other witness, which knows nothing of the books. It
/// outlives the dispatchers.
#[derive(Debug, Clone, Default)]
pub(super) struct ShopWitness(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    placed: BTreeMap<u64, OrderPlaced>,
    rolled_back: BTreeSet<u64>,
    billed: BTreeMap<u64, u64>,
    shipped: BTreeMap<u64, u64>,
    refused: BTreeSet<u64>,
    retried: u64,
    payments: BTreeMap<u64, BTreeSet<EventId>>,
}

/// Everything that does not fit together, and what happened on the way.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct OrderFindings {
    /// Orders whose transaction was committed.
    pub(super) placed: usize,
    /// Orders whose transaction was taken back, none of which may ever be handled.
    pub(super) rolled_back: usize,
    /// Orders that were placed and not handled, or were handled and never placed.
    pub(super) missing: usize,
    /// Times that a handler was called again after it had succeeded.
    pub(super) duplicates: u64,
    /// Calls that failed and were tried again.
    pub(super) retried: u64,
    /// Orders that a handler refused for good.
    pub(super) refused: usize,
    /// Payments that were published twice for one order.
    pub(super) doubled: usize,
    /// Customers whose orders the read model has counted wrong.
    pub(super) miscounted: usize,
}

impl ShopWitness {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An order was committed, or taken back.
    pub(super) fn ordered(&self, order: OrderPlaced, is_committed: bool) {
        let mut known = self.known();
        if is_committed {
            known.placed.insert(order.order, order);
        } else {
            known.rolled_back.insert(order.order);
        }
    }

    pub(super) fn billed(&self, order: u64) {
        *self.known().billed.entry(order).or_default() += 1;
    }

    pub(super) fn shipped(&self, order: u64) {
        *self.known().shipped.entry(order).or_default() += 1;
    }

    pub(super) fn refused(&self, order: u64) {
        self.known().refused.insert(order);
    }

    pub(super) fn failed_once(&self) {
        self.known().retried += 1;
    }

    pub(super) fn paid(&self, order: u64, payment: EventId) {
        self.known()
            .payments
            .entry(order)
            .or_default()
            .insert(payment);
    }

    /// Holds what was ordered against what was handled and what the read model has.
    pub(super) fn findings(&self, tallied: &[TallyRow]) -> OrderFindings {
        let known = self.known();
        let again = |times: &BTreeMap<u64, u64>| times.values().map(|n| n - 1).sum::<u64>();
        let handled = known.billed.keys().chain(known.shipped.keys());
        let handled: BTreeSet<u64> = handled.chain(&known.refused).copied().collect();
        let unknown = handled.iter().filter(|id| !known.placed.contains_key(id));
        let is_wrong = |order: &&OrderPlaced| !known.is_handled(order);
        OrderFindings {
            placed: known.placed.len(),
            rolled_back: known.rolled_back.len(),
            missing: known.placed.values().filter(is_wrong).count() + unknown.count(),
            duplicates: again(&known.billed) + again(&known.shipped),
            retried: known.retried,
            refused: known.refused.len(),
            doubled: known.payments.values().filter(|ids| ids.len() > 1).count(),
            miscounted: known.miscounted(tallied),
        }
    }
}

impl Known {
    /// Whether both handlers were done with an order, or it was refused as it had to be.
    fn is_handled(&self, order: &OrderPlaced) -> bool {
        let id = &order.order;
        match order.address {
            None => self.refused.contains(id) && !self.shipped.contains_key(id),
            Some(_) => {
                self.billed.contains_key(id)
                    && self.shipped.contains_key(id)
                    && self.payments.contains_key(id)
            }
        }
    }

    /// How many rows of the read model are not what they should be.
    fn miscounted(&self, tallied: &[TallyRow]) -> usize {
        let mut expected: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for order in self.placed.values().filter(|order| order.address.is_some()) {
            let row = (OrderPlaced::TYPE, order.customer.as_str());
            *expected.entry(row).or_default() += 1;
        }
        let payments: usize = self.payments.values().map(BTreeSet::len).sum();
        if payments > 0 {
            let payments = i64::try_from(payments).unwrap_or(i64::MAX);
            expected.insert((PaymentTaken::TYPE, ""), payments);
        }
        let found = tallied.iter();
        let found = found.map(|row| ((row.type_name.as_str(), row.key.as_str()), row.events));
        let found: BTreeMap<_, _> = found.collect();
        let rows: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
        let differs = |row: &&&(&str, &str)| expected.get(**row) != found.get(**row);
        rows.iter().filter(differs).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(id: u64, address: Option<&str>) -> OrderPlaced {
        OrderPlaced {
            order: id,
            customer: "ada".to_owned(),
            address: address.map(str::to_owned),
            card_failures: 0,
            is_withdrawn: false,
        }
    }

    /// A world in which one order was handled and one was refused.
    fn sound() -> (ShopWitness, Vec<TallyRow>) {
        let world = ShopWitness::default();
        world.ordered(order(1, Some("here")), true);
        world.ordered(order(2, None), true);
        world.ordered(order(3, Some("here")), false);
        world.billed(1);
        world.shipped(1);
        world.paid(1, EventId::from_u128(7));
        world.refused(2);
        let row = |type_name: &str, key: &str| TallyRow {
            type_name: type_name.to_owned(),
            key: key.to_owned(),
            events: 1,
        };
        (
            world,
            vec![row("OrderPlaced", "ada"), row("PaymentTaken", "")],
        )
    }

    #[test]
    fn the_witness_finds_nothing_where_all_is_well() {
        let (world, tallied) = sound();
        let found = world.findings(&tallied);
        let expected = OrderFindings {
            placed: 2,
            rolled_back: 1,
            refused: 1,
            ..OrderFindings::default()
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn the_witness_sees_what_is_missing_too_much_or_counted_wrong() {
        let (world, tallied) = sound();
        world.ordered(order(4, Some("here")), true);
        assert_eq!(world.findings(&tallied).missing, 1, "nobody handled it");
        let (world, tallied) = sound();
        world.shipped(3);
        assert_eq!(world.findings(&tallied).missing, 1, "it was rolled back");
        let (world, tallied) = sound();
        world.shipped(2);
        assert_eq!(world.findings(&tallied).missing, 1, "it has no address");
        let (world, tallied) = sound();
        world.billed(1);
        assert_eq!(world.findings(&tallied).duplicates, 1);
        let (world, mut tallied) = sound();
        world.paid(1, EventId::from_u128(8));
        assert_eq!(world.findings(&tallied).doubled, 1);
        tallied[1].events = 2;
        tallied[0].events = 2;
        assert_eq!(world.findings(&tallied).miscounted, 1);
        tallied.remove(0);
        assert_eq!(world.findings(&tallied).miscounted, 1);
    }
}
