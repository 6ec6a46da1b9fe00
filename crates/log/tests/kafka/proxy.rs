//! A line to a broker that can break: it passes on what client and broker say, and loses an answer
//! when it is told to.
//!
//! It reads as much of the protocol as that needs: frames, which request an answer belongs to, and the
//! addresses that a broker gives of itself, which become those of the line.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Requests by their number in the protocol.
pub(crate) const PRODUCE: i16 = 0;
pub(crate) const FETCH: i16 = 1;
pub(crate) const METADATA: i16 = 3;
pub(crate) const OFFSET_COMMIT: i16 = 8;
pub(crate) const FIND_COORDINATOR: i16 = 10;
pub(crate) const END_TXN: i16 = 26;

/// The fate of the next answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It is lost with its connection; the next connection works.
    Cut,
    /// It is lost, and nothing gets through any more until the line is mended.
    Dead,
}

/// A line to a broker.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    line: Arc<Line>,
}

#[derive(Debug)]
struct Line {
    broker: String,
    port: u16,
    loss: Mutex<Option<(Vec<i16>, Loss)>>,
    lost: AtomicU64,
    is_dead: AtomicBool,
    /// Connections made before this one, by their number, bring no records.
    dry_before: AtomicU64,
    connections: AtomicU64,
    is_rejected: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
    rewrite: Mutex<Option<Rewrite>>,
    holding: Mutex<Holding>,
    /// The held answers have changed.
    held: Condvar,
}

/// Answers that are kept on the line.
#[derive(Debug, Default)]
struct Holding {
    /// Answers to this request are kept.
    request: Option<i16>,
    /// How many were.
    count: u64,
}

/// Changes an answer: by the number of its request, its version and its bytes behind the length.
/// Returns whether it did; it is asked until then.
pub(crate) type Rewrite = fn(i16, i16, &mut [u8]) -> bool;

impl Proxy {
    /// A line to the broker at this address.
    pub(crate) fn start(broker: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let line = Arc::new(Line {
            broker: broker.to_owned(),
            port,
            loss: Mutex::default(),
            lost: AtomicU64::new(0),
            is_dead: AtomicBool::new(false),
            dry_before: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            is_rejected: AtomicBool::new(false),
            open: Mutex::default(),
            rewrite: Mutex::default(),
            holding: Mutex::default(),
            held: Condvar::new(),
        });
        let accepting = Arc::clone(&line);
        std::thread::spawn(move || accepting.accept(&listener));
        Self { port, line }
    }

    /// Where clients reach the broker over this line.
    pub(crate) fn servers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The next answer to any of these requests is lost, after the broker has done what was asked.
    pub(crate) fn lose_next_answer(&self, requests: &[i16], loss: Loss) {
        *self.line.loss.lock().unwrap() = Some((requests.to_vec(), loss));
    }

    /// How many answers were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.line.lost.load(Ordering::SeqCst)
    }

    /// Changes one answer.
    #[allow(dead_code, reason = "not every test program changes answers")]
    pub(crate) fn rewrite(&self, rewrite: Rewrite) {
        *self.line.rewrite.lock().unwrap() = Some(rewrite);
    }

    /// Whether the answer was changed.
    #[allow(dead_code, reason = "not every test program changes answers")]
    pub(crate) fn has_rewritten(&self) -> bool {
        self.line.rewrite.lock().unwrap().is_none()
    }

    /// From now on no records come over the connections that there are, and nobody is told.
    #[allow(dead_code, reason = "not every test program lets a line run dry")]
    pub(crate) fn dry_up(&self) {
        let connections = self.line.connections.load(Ordering::SeqCst);
        self.line.dry_before.store(connections, Ordering::SeqCst);
    }

    /// Answers to this request stay on the line, after the broker has done what was asked.
    #[allow(dead_code, reason = "not every test program holds answers")]
    pub(crate) fn hold(&self, request: i16) {
        self.line.holding.lock().unwrap().request = Some(request);
    }

    /// Returns once an answer is held.
    #[allow(dead_code, reason = "not every test program holds answers")]
    pub(crate) fn wait_until_held(&self) {
        let holding = self.line.holding.lock().unwrap();
        let limit = Duration::from_secs(90);
        let none = |holding: &mut Holding| holding.count == 0;
        let (holding, _) = self
            .line
            .held
            .wait_timeout_while(holding, limit, none)
            .unwrap();
        assert!(holding.count > 0, "no answer came that could be held");
    }

    /// Held answers go on, and so do those that come.
    pub(crate) fn let_through(&self) {
        *self.line.holding.lock().unwrap() = Holding::default();
        self.line.held.notify_all();
    }

    /// The line works again.
    #[allow(dead_code, reason = "not every test program lets the line die")]
    pub(crate) fn mend(&self) {
        *self.line.loss.lock().unwrap() = None;
        self.line.is_dead.store(false, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.line.is_rejected.store(true, Ordering::SeqCst);
        self.let_through();
        // The listener looks up and sees that it is over.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        self.line.hang_up();
    }
}

impl Line {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.is_rejected.load(Ordering::SeqCst) {
                return;
            }
            let Ok(client) = client else { continue };
            if self.is_dead.load(Ordering::SeqCst) {
                continue;
            }
            let Ok(broker) = TcpStream::connect(&self.broker) else {
                continue;
            };
            for side in [&client, &broker] {
                side.set_nodelay(true).unwrap();
                self.open.lock().unwrap().push(side.try_clone().unwrap());
            }
            let call = Arc::new(LogFuture {
                number: self.connections.fetch_add(1, Ordering::SeqCst),
                asked: Mutex::default(),
            });
            for (from, to, is_asking) in [
                (
                    client.try_clone().unwrap(),
                    broker.try_clone().unwrap(),
                    true,
                ),
                (broker, client, false),
            ] {
                let (line, call) = (Arc::clone(self), Arc::clone(&call));
                std::thread::spawn(move || {
                    line.pass_on(from, to, &call, is_asking);
                });
            }
        }
    }

    /// Passes frames on until one side hangs up, or the line does.
    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream, call: &LogFuture, is_asking: bool) {
        while let Some(mut frame) = read_frame(&mut from) {
            if is_asking {
                call.ask(&frame);
            } else {
                match self.answer(call, &mut frame) {
                    Fate::Passes => {}
                    Fate::Vanishes => continue,
                    Fate::Cuts => break,
                }
            }
            let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
            if to
                .write_all(&length)
                .and_then(|()| to.write_all(&frame))
                .is_err()
            {
                break;
            }
        }
        for side in [from, to] {
            drop(side.shutdown(Shutdown::Both));
        }
    }

    /// Looks at an answer.
    fn answer(&self, call: &LogFuture, frame: &mut [u8]) -> Fate {
        let Some((request, version)) = call.answered(frame) else {
            return Fate::Passes;
        };
        if request == FETCH && call.number < self.dry_before.load(Ordering::SeqCst) {
            return Fate::Vanishes;
        }
        self.wait_while_held(request);
        let is_it = |(requests, _): &mut (Vec<i16>, Loss)| requests.contains(&request);
        let loss = self.loss.lock().unwrap().take_if(is_it);
        if let Some((_, loss)) = loss {
            if loss == Loss::Dead {
                self.is_dead.store(true, Ordering::SeqCst);
                self.hang_up();
            }
            self.lost.fetch_add(1, Ordering::SeqCst);
            return Fate::Cuts;
        }
        if request == METADATA || request == FIND_COORDINATOR {
            self.readdress(frame);
        }
        let mut rewrite = self.rewrite.lock().unwrap();
        let is_done = rewrite.is_some_and(|rewrite| rewrite(request, version, frame));
        if is_done {
            *rewrite = None;
        }
        if self.is_dead.load(Ordering::SeqCst) {
            return Fate::Cuts;
        }
        Fate::Passes
    }

    /// Waits for as long as answers to this request are held.
    fn wait_while_held(&self, request: i16) {
        let mut holding = self.holding.lock().unwrap();
        if holding.request == Some(request) {
            holding.count += 1;
            self.held.notify_all();
            let is_held = |holding: &mut Holding| holding.request == Some(request);
            drop(self.held.wait_while(holding, is_held).unwrap());
        }
    }

    /// Puts the line in the place of the broker. In every version an address is the name of the host
    /// and behind it the port.
    fn readdress(&self, frame: &mut [u8]) {
        let (host, port) = self.broker.rsplit_once(':').unwrap();
        let port = port.parse::<u32>().unwrap().to_be_bytes();
        let sought = [host.as_bytes(), &port].concat();
        let ours = u32::from(self.port).to_be_bytes();
        for at in 0..frame.len().saturating_sub(sought.len() - 1) {
            if frame[at..].starts_with(&sought) {
                frame[at + host.len()..at + sought.len()].copy_from_slice(&ours);
            }
        }
    }

    fn hang_up(&self) {
        for side in self.open.lock().unwrap().drain(..) {
            drop(side.shutdown(Shutdown::Both));
        }
    }
}

/// The fate of an answer.
enum Fate {
    Passes,
    Vanishes,
    Cuts,
}

/// One connection.
#[derive(Debug)]
struct LogFuture {
    number: u64,
    /// The requests it waits for: number and version, by their correlation.
    asked: Mutex<BTreeMap<i32, (i16, i16)>>,
}

impl LogFuture {
    fn ask(&self, frame: &[u8]) {
        if let [a, b, c, d, e, f, g, h, ..] = *frame {
            let request = (i16::from_be_bytes([a, b]), i16::from_be_bytes([c, d]));
            let correlation = i32::from_be_bytes([e, f, g, h]);
            self.asked.lock().unwrap().insert(correlation, request);
        }
    }

    fn answered(&self, frame: &[u8]) -> Option<(i16, i16)> {
        let correlation = i32::from_be_bytes(*frame.first_chunk()?);
        self.asked.lock().unwrap().remove(&correlation)
    }
}

fn read_frame(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).ok()?;
    let mut frame = vec![0; usize::try_from(u32::from_be_bytes(length)).ok()?];
    from.read_exact(&mut frame).ok()?;
    Some(frame)
}
