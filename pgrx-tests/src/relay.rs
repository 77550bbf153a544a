//! A socket that leads to the server, with the network of a test between the two.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use crate::Cluster;

/// Called for each message: waits as long as the message takes, and says whether it arrives. If not, the connection is cut.
pub type Pass = Box<dyn FnMut() -> bool + Send>;

/// Listens at a port beside that of the server, as long as the process runs. `network` makes what each connection, by its number,
/// does with the messages of the client and with those of the server.
pub fn open(cluster: &Cluster, port: u16, network: impl Fn(u64) -> [Pass; 2] + Send + 'static) {
    let socket = |port| cluster.folder().join(format!(".s.PGSQL.{port}"));
    let (listener, server) = (UnixListener::bind(socket(port)).expect("listen"), socket(5432));
    thread::spawn(move || {
        for (client, number) in listener.incoming().zip(0..) {
            let (Ok(client), Ok(server)) = (client, UnixStream::connect(&server)) else { return };
            let (from, to) = (client.try_clone().expect("a stream"), server.try_clone().expect("a stream"));
            let [asks, answers] = network(number);
            thread::spawn(move || carry(from, to, asks));
            thread::spawn(move || carry(server, client, answers));
        }
    });
}

fn carry(mut from: UnixStream, mut to: UnixStream, mut pass: Pass) {
    let mut buffer = [0; 16384];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if !pass() || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}
