//! Forgetting a projection while somebody begins to run it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_queue::model::{CallFault, QueueModel};
use tidegate_queue::port::QueueStore;
use tidegate_queue::{Queue, QueueError};
use tidegate_sim::Sim;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn forgetting_a_projection_is_reported_where_its_leadership_was_lost() {
    for slow in ["projections", "forget_projection"] {
        let mut sim = Sim::new(1);
        let (database, node) = (sim.node("database"), sim.node("one"));
        let model = QueueModel::new(database.env().clock);
        let noted = model.clone();
        sim.block_on(&database, async move {
            let leadership = noted
                .acquire_leadership("projection.p", "one", SECOND)
                .await;
            let leadership = leadership.unwrap().unwrap();
            let tx = noted.begin().await.unwrap();
            assert!(noted.advance(tx, &leadership, "p", 0, 3).await.unwrap());
            noted
                .renew_leadership(&leadership, Duration::ZERO)
                .await
                .unwrap();
        });
        // It stands still for longer than its leadership.
        let mut is_slow = true;
        model.set_faults(move |doing| match doing == slow {
            true if std::mem::take(&mut is_slow) => CallFault::Delay(SECOND * 8),
            true | false => CallFault::None,
        });
        let queue = Queue::on(Arc::new(model.clone()), &node.env());
        let told = Arc::new(std::sync::Mutex::new(None));
        let tell = Arc::clone(&told);
        drop(node.start("forget", async move {
            *tell.lock().unwrap() = Some(queue.forget_projection("p").await);
        }));
        sim.run_for(SECOND * 6);
        let other = model.clone();
        let leadership = sim.block_on(&database, async move {
            other
                .acquire_leadership("projection.p", "other", SECOND * 60)
                .await
        });
        assert!(leadership.unwrap().is_some());
        sim.run_for(SECOND * 6);
        let told = told.lock().unwrap().take().unwrap();
        assert!(
            matches!(told, Err(QueueError::ProjectionRuns { .. })),
            "{slow}: {told:?}"
        );
        let at = sim.block_on(&database, async move { model.projection("p").await });
        assert_eq!(at.unwrap(), 3, "{slow}: it is still there");
    }
}
