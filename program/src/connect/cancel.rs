//! Cancels a statement as libpq does: the connection for the request stays open until the server closes it.
//!
//! The driver closes it at once. PgBouncer 1.18 and 1.19 then end with "bad client state: 0", and with them all connections
//! (pgbouncer issue 801).

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{CancelToken, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::parameters::{Host, Location};
use crate::failure::Failure;

/// Sends the request, and waits until the server has taken it.
pub async fn send(
    token: &CancelToken,
    location: &Location,
    connector: Option<MakeRustlsConnect>,
) -> Result<(), Failure> {
    match &location.host {
        Host::Socket(folder) => {
            let path = folder.join(format!(".s.PGSQL.{}", location.port));
            token.cancel_query_raw(Patient(UnixStream::connect(path).await?), NoTls).await?;
        }
        Host::Network { name, address } => {
            let stream = Patient(open(name, *address, location.port).await?);
            match connector {
                Some(mut connector) => {
                    let made = MakeTlsConnect::<Patient<TcpStream>>::make_tls_connect(&mut connector, name);
                    let tls = made.unwrap_or_else(|never| match never {});
                    token.cancel_query_raw(stream, tls).await?;
                }
                None => token.cancel_query_raw(stream, NoTls).await?,
            }
        }
    }
    Ok(())
}

async fn open(name: &str, address: Option<IpAddr>, port: u16) -> io::Result<TcpStream> {
    match address {
        Some(address) => TcpStream::connect((address, port)).await,
        None => TcpStream::connect((name, port)).await,
    }
}

/// A stream that is shut down by the other side only.
struct Patient<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.0).poll_flush(context))?;
        loop {
            let (mut bytes, mut reader) = ([0; 64], Pin::new(&mut self.0));
            let mut buffer = ReadBuf::new(&mut bytes);
            // A server that resets the connection has taken the request, too.
            if ready!(reader.as_mut().poll_read(context, &mut buffer)).is_err() || buffer.filled().is_empty()
            {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
