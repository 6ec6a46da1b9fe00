//! The loop that accepts, and the way it ends.
//!
//! Stopping has three steps. First nothing more is accepted and `/readyz` says no, while requests in
//! flight go on and connections that idle may still ask. When the last request is done, the connections
//! are told to close. Requests and connections that are left when the time is up are cut, and counted.

mod connection;
mod connections;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::sync::watch;

use crate::Server;
use crate::telemetry;
use connection::{Connection, ConnectionPhase};
use connections::ConnectionLimiter;

/// How long accepting pauses after the operating system refused, for example because the process
/// has no file descriptors left: trying again at once would only burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often histograms are folded into their buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// How long tasks of connections get to notice that they were cut.
const CUT_LIMIT: Duration = Duration::from_secs(1);

/// The counts of a server, returned when it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeReport {
    /// Connections that were accepted.
    pub connections: u64,
    /// Requests that reached a handler or were refused by a guard.
    pub requests: u64,
    /// Requests that were still in flight when the drain timeout ran out. Their clients do not
    /// know whether they were carried out.
    pub cut: u64,
    /// Connections that the drain timeout closed: those of `cut`, and those whose client had not
    /// read its last response to the end, or had sent half a request head.
    pub closed: u64,
}

impl Server {
    /// Accepts and answers until `shutdown` completes, then drains and returns.
    ///
    /// Returns at most the drain timeout and a second after `shutdown`; the address is free
    /// from the moment it completes. If canceled, everything stops at once: the address is free
    /// and every connection is closed at its task's next turn, with no count of what was cut.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> ServeReport {
        let phase = watch::Sender::new(ConnectionPhase::Open);
        let mut accepted = 0;
        tokio::select! {
            biased;
            () = shutdown => {}
            never = self.accept(&phase, &mut accepted) => match never {},
            never = self.keep_up() => match never {},
        }
        self.drain(phase, accepted).await
    }

    async fn accept(
        &self,
        phase: &watch::Sender<ConnectionPhase>,
        accepted: &mut u64,
    ) -> Infallible {
        let connections = ConnectionLimiter::new(self.limits.max_connections.get());
        loop {
            // Room is made once somebody wants it, so one more than may be open is accepted.
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    *accepted += 1;
                    let permit = connections.permit(self.clock.as_ref()).await;
                    let connection = Connection::new(peer, permit, phase.subscribe());
                    let serving = connection.serve(stream, self.router.clone(), &self.limits);
                    // Its end is told by `phase`, and its panic by the connection itself.
                    drop(self.spawn.spawn("http-connection", Box::pin(serving)));
                }
                // The client was gone before we came to it.
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    telemetry::accept_failed(&error, ACCEPT_PAUSE);
                    self.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn keep_up(&self) -> Infallible {
        loop {
            self.clock.sleep(UPKEEP_INTERVAL).await;
            if let Some(exporter) = &self.exporter {
                exporter.keep_up();
            }
        }
    }

    async fn drain(self, phase: watch::Sender<ConnectionPhase>, connections: u64) -> ServeReport {
        let Self {
            listener,
            limits,
            clock,
            health,
            in_flight,
            ..
        } = self;
        health.drain();
        drop(listener);
        telemetry::drain_began(in_flight.now(), limits.drain_timeout);

        let mut deadline = clock.sleep(limits.drain_timeout);
        let is_done = tokio::select! {
            biased;
            () = in_flight.none() => true,
            () = &mut deadline => false,
        };
        if is_done {
            phase.send_replace(ConnectionPhase::Closing);
            // Left now are responses that their clients have yet to read, and halves of
            // request heads; both have until the deadline.
            tokio::select! {
                biased;
                () = phase.closed() => {}
                () = &mut deadline => {}
            }
        }

        let (cut, left) = (in_flight.now(), phase.receiver_count());
        if cut > 0 {
            telemetry::drain_cut(cut);
        }
        phase.send_replace(ConnectionPhase::Cut);
        // A handler that blocks its thread cannot be cut; nobody waits for it.
        clock.within(CUT_LIMIT, phase.closed()).await;
        let closed = u64::try_from(left).unwrap_or(u64::MAX);
        ServeReport {
            connections,
            requests: in_flight.ever(),
            cut,
            closed,
        }
    }
}

fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
    )
}
