//! Connections that can be cut in the middle of an answer.
//!
//! A handler cannot close the connection under it. It can tell the connection, which then refuses
//! to write; the server gives such a connection up.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// How a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Cut {
    Not = 0,
    /// The next answer ends in the middle of its body.
    HalfWay = 1,
    /// Not one byte more is written.
    Now = 2,
    /// Not one byte more is written, and the other side is told by a reset.
    Reset = 3,
}

/// The handle by which a request cuts its connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Scissors(Arc<AtomicU8>);

impl Scissors {
    pub(super) fn cut(&self, cut: Cut) {
        self.0.store(cut as u8, Ordering::SeqCst);
    }

    fn state(&self) -> Cut {
        let state = self.0.load(Ordering::SeqCst);
        [Cut::HalfWay, Cut::Now, Cut::Reset]
            .into_iter()
            .find(|cut| *cut as u8 == state)
            .unwrap_or(Cut::Not)
    }
}

impl Connected<IncomingStream<'_, Lines>> for Scissors {
    fn connect_info(stream: IncomingStream<'_, Lines>) -> Self {
        stream.io().scissors.clone()
    }
}

/// A port that gives out [`Line`]s.
pub(super) struct Lines(pub(super) TcpListener);

impl Listener for Lines {
    type Io = Line;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Line, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.0).await;
        let scissors = Scissors::default();
        (Line { stream, scissors }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A connection that can be cut.
pub(super) struct Line {
    stream: TcpStream,
    scissors: Scissors,
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.scissors.state() {
            Cut::Not => Pin::new(&mut self.stream).poll_write(context, bytes),
            Cut::HalfWay => {
                let head = head_len(bytes);
                let half = head + (bytes.len() - head) / 2;
                let part = bytes.get(..half).unwrap_or(bytes);
                let written = Pin::new(&mut self.stream).poll_write(context, part);
                if written.is_ready() {
                    self.scissors.cut(Cut::Now);
                }
                written
            }
            Cut::Now => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Cut::Reset => {
                // With no time to linger, closing sends a reset in place of an end.
                let reset = self.stream.set_zero_linger();
                Poll::Ready(reset.and(Err(io::ErrorKind::ConnectionReset.into())))
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The length of status line and headers with the empty line after them; 0 when they are not here.
fn head_len(bytes: &[u8]) -> usize {
    const END: &[u8] = b"\r\n\r\n";
    let end = bytes.windows(END.len()).position(|window| window == END);
    end.map_or(0, |at| at + END.len())
}
