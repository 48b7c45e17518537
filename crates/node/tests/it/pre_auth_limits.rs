//! Pre-auth limits: connections without a hello, with a slow one, and a tenant that takes too many.
//!
//! Promise 6 (bounded): "open files each have a stated limit that holds under any load". Promise 4:
//! only authenticated clients are served.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

use forebay_wire::ErrorCode;

use crate::{
    harness::{Data, TIMEOUT, get, put},
    two_tenants::{OURS, THEIRS, TenantSetup, Transport, code},
};

/// The first bytes of a TLS handshake.
const HANDSHAKE: [u8; 9] = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc];

/// Whether the node closes the connection in time.
fn is_closed(socket: &mut TcpStream, within: Duration) -> bool {
    socket.set_read_timeout(Some(within)).unwrap();
    let mut bytes = [0; 64];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn silent_connections_are_evicted_by_new_ones() {
    for transport in [Transport::Cleartext, Transport::Tls] {
        let setup = TenantSetup::with(transport, |config| config.max_connections = 16);
        let data = Data::of(&setup.namespace(OURS), &[1000; 4]);
        let mut first = setup.connect(&setup.by_token(OURS), "first").unwrap();
        let handle = first.open(&data.digest).unwrap();
        put(&mut first, handle, &data, 0);
        let mut silent = Vec::new();
        for number in 0..60 {
            let mut socket = TcpStream::connect(setup.node.listen.unwrap()).unwrap();
            match number % 3 {
                0 => {}
                1 => drop(socket.write_all(&HANDSHAKE[..number % 9])),
                _ => drop(socket.write_all(&[0])),
            }
            silent.push(socket);
            if number % 10 == 0 {
                let mut honest = setup.connect(&setup.by_token(OURS), "honest").unwrap();
                let handle = honest.open(&data.digest).unwrap();
                get(&mut honest, handle, &data, 0, TIMEOUT).unwrap();
            }
        }
        get(&mut first, handle, &data, 0, TIMEOUT).unwrap();
        // At most eight pre-auth connections are open.
        for socket in &mut silent[..50] {
            assert!(is_closed(socket, TIMEOUT), "{transport:?}");
        }
        let rejected = setup.node.service.counters().preauth_rejected.get();
        assert!(rejected >= 50, "{rejected} of 60 were evicted and counted");
        drop(silent);
        setup.node.wait_until_connections(1);
    }
}

/// The only test that waits for a timeout: 20 s.
#[test]
fn a_connection_without_a_complete_hello_is_closed() {
    let waiting: Vec<_> = [Transport::Cleartext, Transport::Tls]
        .into_iter()
        .flat_map(|transport| [&[][..], &HANDSHAKE[..]].map(|begun| (transport, begun)))
        .map(|(transport, begun)| {
            thread::spawn(move || {
                let setup = TenantSetup::new(transport);
                let mut socket = TcpStream::connect(setup.node.listen.unwrap()).unwrap();
                // Longer bytes would be a malformed frame, which is refused at once.
                socket
                    .write_all(if transport == Transport::Cleartext {
                        &[0; 5][..begun.len().min(5)]
                    } else {
                        begun
                    })
                    .unwrap();
                assert!(is_closed(&mut socket, 3 * TIMEOUT), "{transport:?} {begun:?}");
            })
        })
        .collect();
    let setup = TenantSetup::new(Transport::Tls);
    let mut connected = setup.without_hello();
    connected.send_bytes(&[]);
    assert!(connected.reply().is_none(), "closed after the handshake, without a hello");
    for thread in waiting {
        thread.join().unwrap();
    }
}

#[test]
fn a_tenant_cannot_take_all_connections() {
    for transport in [Transport::Cleartext, Transport::Tls] {
        let setup = TenantSetup::with(transport, |config| config.max_connections = 16);
        let greedy = setup.by_token(THEIRS);
        let mut held: Vec<_> = (0..8).map(|_| setup.connect(&greedy, "greedy").unwrap()).collect();
        for _ in 0..10 {
            let refused = setup.connect(&greedy, "greedy").unwrap_err();
            assert_eq!(code(&refused), ErrorCode::TooMuch);
        }
        let honest: Vec<_> =
            (0..3).map(|_| setup.connect(&setup.by_token(OURS), "honest").unwrap()).collect();
        held.pop();
        let again = (0..1000).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            setup.connect(&greedy, "greedy").ok()
        });
        assert!(again.is_some(), "the tenant can connect again");
        drop(honest);
    }
}
