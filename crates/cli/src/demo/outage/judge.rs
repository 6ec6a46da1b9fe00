//! The last phase: everything is counted, by the loggers, by the API, and event by event.

use tidegate_client::ProcessClient;
use tidegate_core::books::{Account, ComponentAccount, ComponentKind, Ledger};
use tidegate_core::{EventId, Failure};

use super::directory::DemoDirectory;
use super::service::DemoResort;
use super::{OutageFrame, OutageStory, OutageVerdict, stored};
use crate::report::ErrorReport;

impl<F: FnMut(&OutageFrame<'_>) -> Result<(), ErrorReport>> OutageStory<F> {
    /// Asks the API for every accepted event, reads all books, and stops everything.
    pub(super) async fn judge(mut self) -> Result<OutageVerdict, ErrorReport> {
        self.look()?;
        let mut accepted = self.resort.accepted_events();
        if let Some(tight) = &self.tight {
            accepted.extend(tight.accepted_events());
        }
        let stored = stored::read(&self.client, &self.url, &accepted).await?;
        let (missing, surplus) = stored::compare(&accepted, &stored.seen);
        let process = ProcessClient::new(&self.url, None);
        let unanswered = |error| ErrorReport::from(Failure::from(error));
        let ledger = process.ledger().await.map_err(unanswered)?;
        let audit = process.audit(None).await.map_err(unanswered)?;
        self.note_end();
        let (duration, files_left) = (self.now(), self.files_left());
        let (dir, mut api) = (self.dir, self.api);
        let try_next = match dir.is_kept {
            true => commands(&dir, stored.ids.get("outage-1")),
            false => Vec::new(),
        };
        let resort = self.resort.stop().account;
        let tight = self.tight.map(DemoResort::stop);
        let tight = tight.map(|report| report.account).unwrap_or_default();
        api.stop().await;
        let both = |value: fn(&Account) -> i64| value(&resort) + value(&tight);
        let of = |name: &str, account: &Account| ComponentAccount {
            name: name.to_owned(),
            kind: ComponentKind::Logger,
            account: account.clone(),
        };
        let mut components = vec![of("logger", &resort), of("logger, tight", &tight)];
        let is_api = |component: &ComponentAccount| component.kind == ComponentKind::EventLog;
        components.extend(ledger.components.into_iter().filter(is_api));
        let books = Ledger::new(components.clone());
        Ok(OutageVerdict {
            demo: OutageStory::NAME,
            phases: self.phases,
            balanced: books.balanced && ledger.balanced && audit.unaccounted == 0,
            components,
            accepted: both(|account| account.accepted),
            delivered: both(|account| account.delivered),
            on_disk: both(|account| account.spilled),
            lost: both(|account| account.lost.total()),
            ledger: resort,
            stored: stored.total,
            missing,
            doubled: surplus + stored.shared_ids,
            unaccounted: audit.unaccounted,
            files_left,
            kills: self.kills,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            try_next,
            samples: self.samples,
            marks: self.marks,
        })
    }
}

/// Commands that look at the files which are left.
fn commands(dir: &DemoDirectory, id: Option<&EventId>) -> Vec<String> {
    let (spill, tight) = (dir.spill(), dir.tight_spill());
    let (spill, tight, store) = (spill.display(), tight.display(), dir.store_url());
    let mut commands = vec![
        format!("tidegate audit --spill {spill} --spill {tight} --store {store}"),
        format!("tidegate spill ls {spill}"),
    ];
    commands
        .extend(id.map(|id| format!("tidegate where {id} --config {}", dir.config().display())));
    commands
}
