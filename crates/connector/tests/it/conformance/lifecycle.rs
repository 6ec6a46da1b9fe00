//! Commands, and the end.

use std::sync::Arc;
use std::time::Duration;

use tidegate_connector::{Binding, Connector, ContainerState, StrictExhausted};
use tidegate_core::dead_letter::Reason;
use tidegate_core::{Offset, Partition};

use crate::scene::{Scene, Script, text, transient};

pub(crate) async fn c44_commands_work_in_their_states_only(scene: Scene) {
    let topic = scene.topic("c44", 1).await;
    let options = scene.options(&topic);
    let script = Script::new(&scene);
    let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
    let binding = || Binding::new(options.clone(), script.answers(|_| Ok(())));
    connector.register(binding()).unwrap();
    let twin = connector.register(binding()).unwrap_err();
    assert_eq!(twin.to_string(), "binding 'orders' already exists");
    let mut renamed = options.clone();
    renamed.name = "again".to_owned();
    let twice = connector.register(Binding::new(renamed, script.answers(|_| Ok(()))));
    assert_eq!(twice.unwrap_err().code().as_str(), "connector.bound-twice");
    let refused = connector.resume("orders").await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Cannot resume binding 'orders': current state is CREATED, resume requires PAUSED"
    );
    connector.start("orders").await.unwrap();
    connector.start("orders").await.unwrap_err();
    connector.resume("orders").await.unwrap_err();
    connector.pause("orders").await.unwrap();
    connector.pause("orders").await.unwrap_err();
    assert_eq!(connector.state("orders").unwrap(), ContainerState::Paused);
    assert!(connector.resume("orders").await.unwrap().flows());
    scene.send(&topic, 0, &["a"]).await;
    scene.until_committed(&options.group, &topic, 1).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(connector.state("orders").unwrap(), ContainerState::Stopped);
    connector.stop("orders").await.unwrap_err();
    connector.pause("orders").await.unwrap_err();
    connector.start("orders").await.unwrap();
    scene.send(&topic, 0, &["b"]).await;
    scene.until_committed(&options.group, &topic, 2).await;
    connector.destroy("orders").await.unwrap();
    let gone = connector.state("orders").unwrap_err();
    assert_eq!(gone.to_string(), "there is no binding 'orders'");
    assert_eq!(script.values(), ["a", "b"]);
}

pub(crate) async fn c47_a_shutdown_finishes_what_is_in_hand(scene: Scene) {
    let topic = scene.topic("c47", 1).await;
    let options = scene.options(&topic);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let clock = Arc::clone(&scene.env.clock);
    let handler = script.handler(move |_| {
        let clock = Arc::clone(&clock);
        async move {
            clock.sleep(Duration::from_millis(50)).await;
            Ok(())
        }
    });
    scene.send(&topic, 0, &["a", "b", "c", "d", "e", "f"]).await;
    let connector = scene.start(options.clone(), handler).await;
    scene
        .until("the second is in hand", || script.calls().len() == 2)
        .await;
    connector.shutdown().await;
    let done = i64::try_from(script.calls().len()).unwrap();
    assert_eq!(scene.committed(&group, &topic, 0).await, Some(done));
    assert!(done < 6, "nothing new began");
    let refused = connector.register(Binding::new(options, script.answers(|_| Ok(()))));
    assert_eq!(
        refused.unwrap_err().code().as_str(),
        "connector.shutting-down"
    );
}

pub(crate) async fn an_operator_gives_a_record_up(scene: Scene) {
    let topic = scene.topic("manual", 1).await;
    let options = scene.options(&topic).strict(StrictExhausted::Pause);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "b" => transient("timeout.read"),
        _ => Ok(()),
    });
    scene.send(&topic, 0, &["a", "b", "c"]).await;
    let connector = scene.start(options.clone(), handler).await;
    let paused = || connector.state("orders").unwrap() == ContainerState::Paused;
    scene.until("it pauses", paused).await;
    let nobody = connector
        .dead_letter("orders", Partition(0), Offset(9))
        .await
        .unwrap_err();
    assert_eq!(nobody.code().as_str(), "connector.record-not-held");
    connector
        .dead_letter("orders", Partition(0), Offset(1))
        .await
        .unwrap();
    let letters = scene.until_letters(&options, 1).await;
    assert_eq!(
        (letters[0].reason, letters[0].failure.code.as_str()),
        (Reason::Manual, "timeout.read")
    );
    connector.resume("orders").await.unwrap();
    scene.until_committed(&group, &topic, 3).await;
    connector.stop("orders").await.unwrap();
}
