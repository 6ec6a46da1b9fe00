//! Rules of groups whose events lie in more places than their topic.

use tidegate_core::books::{Audited, Books, Place, Posting, postings};
use tidegate_core::dead_letter::name;
use tidegate_core::{EventId, GroupName, Offset, Topic};

use super::member::Member;
use super::scene::Scene;
use crate::{
    Append, Committed, EVENT_ID, LogFuture, NoMarks, OffsetCommit, OwnedGroup, Record,
    SettledMarks, TopicPartition,
};

type Events = Vec<(Offset, EventId)>;

/// Marks of the simplest kind: the metadata is one offset that is settled.
#[derive(Debug)]
struct OneMark;

impl SettledMarks for OneMark {
    fn settled_above<'a>(
        &'a self,
        _: &'a GroupName,
        _: &'a TopicPartition,
        committed: &'a Committed,
    ) -> LogFuture<'a, Vec<(Offset, Offset)>> {
        let mark = committed.metadata.parse::<i64>().ok();
        let mark = mark.map(|mark| (Offset(mark), Offset(mark + 1)));
        Box::pin(async move { Ok(mark.into_iter().collect()) })
    }
}

/// A group with a tier and dead letters, and six events in its topic.
struct Set {
    owned: OwnedGroup,
    main: TopicPartition,
    tier: TopicPartition,
    letters: TopicPartition,
    member: Member,
    events: Events,
}

impl Set {
    async fn out(scene: &Scene) -> Self {
        let [main, tier, letters] = [
            scene.topic(1).await,
            scene.topic(1).await,
            scene.topic(1).await,
        ];
        let group = scene.group();
        let tier_group = GroupName::new(format!("{group}.retry-1")).unwrap();
        let owned = OwnedGroup {
            tiers: vec![(tier.clone(), tier_group)],
            dead_letters: vec![letters.clone()],
            ..OwnedGroup::new(main.clone(), group.clone())
        };
        let first = |topic: Topic| TopicPartition::new(topic, 0);
        let (main, tier, letters) = (first(main), first(tier), first(letters));
        let events = scene.append_events(&main, 6).await;
        let mut member = scene.join(&group, &main.topic).await;
        member.until_seen(6).await;
        Self {
            owned,
            main,
            tier,
            letters,
            member,
            events,
        }
    }

    fn moved(&self, index: usize, to: Place) -> Vec<Posting> {
        postings([self.events[index].1], Some(Place::Queued), Some(to))
    }

    /// The offset behind an event, with postings and a text.
    fn behind(&self, index: usize, metadata: &str, postings: Vec<Posting>) -> OffsetCommit {
        let next = Offset(self.events[index].0.0 + 1);
        OffsetCommit {
            postings,
            ..self.member.offset(&self.main, next, metadata)
        }
    }

    /// A copy of an event for a tier or among the dead letters.
    fn copy(&self, index: usize, to: &TopicPartition, group: &GroupName) -> Append {
        let record = Record::new("copy")
            .header(EVENT_ID, self.events[index].1.to_string().as_str())
            .header(name::GROUP, group.as_str());
        Append::new(to.topic.clone(), record).partition(to.partition.0)
    }

    async fn audit(&self, scene: &Scene, marks: &dyn SettledMarks) -> Audited {
        let audit = self.owned.audit(&*scene.log, marks).await.unwrap();
        let audited = audit.audited();
        let account = self
            .owned
            .account(&*scene.log, marks, &Books::default())
            .await
            .unwrap();
        assert_eq!(account.name, audited.name);
        assert_eq!(account.account.retrying, audited.books.retrying);
        assert_eq!(account.account.delivered, audited.books.delivered);
        audited
    }
}

/// The books of a group are the sum over the groups of its topic and its tiers. The records of each topic say
/// the same. Records of other groups in shared tiers are none of its own.
pub async fn the_books_of_a_group_are_the_sum_over_its_groups(scene: Scene) {
    let set = Set::out(&scene).await;
    let other = scene.group();
    let mut all = set.moved(0, Place::Delivered);
    all.extend(set.moved(1, Place::Retrying));
    all.extend(set.moved(2, Place::DeadLettered));
    let appends = vec![
        set.copy(1, &set.tier, &set.owned.group),
        set.copy(2, &set.letters, &set.owned.group),
        set.copy(5, &set.tier, &other),
    ];
    let offsets = vec![set.behind(2, "", all)];
    set.member.commit(appends, offsets).await.unwrap();
    scene.values_once(&set.tier, 2).await;
    scene.values_once(&set.letters, 1).await;
    let found = set.audit(&scene, &NoMarks).await;
    assert_eq!((found.unaccounted, found.unverifiable), (0, 0), "{found:?}");
    let books = &found.books;
    assert_eq!((books.retrying, books.dead_lettered), (1, 1));
    assert_eq!((books.queued, books.delivered, books.accepted), (3, 1, 6));
    assert_eq!(found.recount, found.books);
    // The tier's own group takes it on; the main group's offsets do not move.
    let (tier, reader) = &set.owned.tiers[0];
    let mut retrying = scene.join(reader, tier).await;
    retrying.until_seen(2).await;
    let end = Offset(retrying.seen[&set.tier].last().unwrap().offset.0 + 1);
    let done = OffsetCommit {
        postings: postings(
            [set.events[1].1],
            Some(Place::Retrying),
            Some(Place::Delivered),
        ),
        ..retrying.offset(&set.tier, end, "")
    };
    let before = scene.committed(&set.owned.group, &set.main).await;
    retrying.commit(Vec::new(), vec![done]).await.unwrap();
    let found = set.audit(&scene, &NoMarks).await;
    assert_eq!((found.unaccounted, found.unverifiable), (0, 0), "{found:?}");
    assert_eq!((found.books.retrying, found.books.delivered), (0, 2));
    let after = scene.committed(&set.owned.group, &set.main).await;
    assert_eq!(before, after);
}

/// A record above the committed offset that the metadata marks is settled and does not wait.
pub async fn records_marked_as_settled_do_not_wait(scene: Scene) {
    let set = Set::out(&scene).await;
    let mark = set.events[3].0.0.to_string();
    let mut all = set.moved(0, Place::Delivered);
    all.extend(set.moved(3, Place::Delivered));
    let offsets = vec![set.behind(0, &mark, all)];
    set.member.commit(Vec::new(), offsets).await.unwrap();
    let found = set.audit(&scene, &OneMark).await;
    assert_eq!((found.unaccounted, found.unverifiable), (0, 0), "{found:?}");
    assert_eq!((found.books.queued, found.books.delivered), (4, 2));
    assert_eq!(found.recount, found.books);
    // A reader that does not know the marks takes it for one that waits, and misses it.
    let unmarked = set.audit(&scene, &NoMarks).await;
    assert_eq!(unmarked.unaccounted, 1, "{unmarked:?}");
    assert_eq!(unmarked.missing[0].id, Some(set.events[3].1));
}

/// A group that reads several topics gives each the dead letters that name it, in whichever topic they lie.
pub async fn dead_letters_of_a_group_are_told_apart_by_their_input(scene: Scene) {
    let mut set = Set::out(&scene).await;
    let more = TopicPartition::new(scene.topic(1).await, 0);
    set.owned.dead_letters.push(more.topic.clone());
    let (group, other) = (set.owned.group.clone(), scene.topic(1).await);
    let mut appends = vec![
        set.copy(0, &set.letters, &group),
        set.copy(1, &more, &group),
        set.copy(2, &more, &group),
    ];
    for (append, input) in appends
        .iter_mut()
        .zip([&set.main.topic, &set.main.topic, &other])
    {
        let record = append.record.clone();
        append.record = record.header(name::INPUT, input.as_str());
    }
    let mut all = set.moved(0, Place::DeadLettered);
    all.extend(set.moved(1, Place::DeadLettered));
    let offsets = vec![set.behind(1, "", all)];
    set.member.commit(appends, offsets).await.unwrap();
    scene.values_once(&more, 2).await;
    let found = set.audit(&scene, &NoMarks).await;
    assert_eq!((found.unaccounted, found.unverifiable), (0, 0), "{found:?}");
    assert_eq!(found.recount.dead_lettered, 2);
}

/// An event that its group put elsewhere and that is not there is named: of a tier, of the dead letters and
/// of the store. The store's part comes from whoever has it.
pub async fn an_event_that_is_in_no_place_is_named(scene: Scene) {
    let set = Set::out(&scene).await;
    for (index, place) in [Place::Retrying, Place::DeadLettered, Place::Parked]
        .into_iter()
        .enumerate()
    {
        let offsets = vec![set.behind(index, "", set.moved(index, place.clone()))];
        set.member.commit(Vec::new(), offsets).await.unwrap();
        let found = set.audit(&scene, &NoMarks).await;
        assert_eq!(found.unaccounted, index as u64 + 1, "{found:?}");
        let named = found.missing.iter().find(|missing| missing.place == place);
        assert_eq!(named.unwrap().id, Some(set.events[index].1));
    }
    let audit = set.owned.audit(&*scene.log, &NoMarks).await.unwrap();
    let parked = set.events[2].1;
    let found = audit.clone().with_store(&Books::default(), [parked]);
    assert_eq!(found.audited().unaccounted, 2);
    // Delivered by the store.
    let mut store = Books::default();
    store.move_one(parked, Some(Place::Parked), Some(Place::Delivered));
    let found = audit.with_store(&store, []).audited();
    assert_eq!((found.unaccounted, found.books.delivered), (2, 1));
}
