//! Those who connect and say nothing, or say it slowly, and those who take all they can.
//!
//! Promise 6 (bounded): "open files each have a stated limit that holds under any load"; and promise 4: nobody who is
//! not known is served at all.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

use forebay_wire::ErrorCode;

use crate::{
    harness::{Data, PATIENCE, get, put},
    town::{OURS, THEIRS, Town, Way, code},
};

/// How the first bytes of a TLS connection look.
const HANDSHAKE: [u8; 9] = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc];

/// Waits until the other side has closed; whether it did in time.
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
fn the_silent_make_room_for_those_who_speak() {
    for way in [Way::Clear, Way::Tls] {
        let town = Town::with(way, |config| config.connections = 16);
        let data = Data::of(&town.namespace(OURS), &[1000; 4]);
        let mut first = town.connect(&town.by_token(OURS), "first").unwrap();
        let handle = first.open(&data.digest).unwrap();
        put(&mut first, handle, &data, 0);
        let mut silent = Vec::new();
        for number in 0..60 {
            let mut socket = TcpStream::connect(town.node.listen.unwrap()).unwrap();
            match number % 3 {
                0 => {}
                1 => drop(socket.write_all(&HANDSHAKE[..number % 9])),
                _ => drop(socket.write_all(&[0])),
            }
            silent.push(socket);
            if number % 10 == 0 {
                let mut honest = town.connect(&town.by_token(OURS), "honest").unwrap();
                let handle = honest.open(&data.digest).unwrap();
                get(&mut honest, handle, &data, 0, PATIENCE).unwrap();
            }
        }
        get(&mut first, handle, &data, 0, PATIENCE).unwrap();
        // At most eight of them have a place.
        for socket in &mut silent[..50] {
            assert!(is_closed(socket, PATIENCE), "{way:?}");
        }
        drop(silent);
        town.node.wait_for_connections(1);
    }
}

/// The one test that waits for a deadline: twenty seconds.
#[test]
fn whoever_does_not_finish_a_greeting_is_disconnected() {
    let waiting: Vec<_> = [Way::Clear, Way::Tls]
        .into_iter()
        .flat_map(|way| [&[][..], &HANDSHAKE[..]].map(|begun| (way, begun)))
        .map(|(way, begun)| {
            thread::spawn(move || {
                let town = Town::new(way);
                let mut socket = TcpStream::connect(town.node.listen.unwrap()).unwrap();
                // As a frame, it makes no sense, and is ended at once.
                socket
                    .write_all(if way == Way::Clear {
                        &[0; 5][..begun.len().min(5)]
                    } else {
                        begun
                    })
                    .unwrap();
                assert!(is_closed(&mut socket, 3 * PATIENCE), "{way:?} {begun:?}");
            })
        })
        .collect();
    let town = Town::new(Way::Tls);
    let mut shaken = town.silent();
    shaken.send_bytes(&[]);
    assert!(shaken.reply().is_none(), "hands were shaken, and nothing was said");
    for thread in waiting {
        thread.join().unwrap();
    }
}

#[test]
fn a_tenant_cannot_take_all_connections() {
    for way in [Way::Clear, Way::Tls] {
        let town = Town::with(way, |config| config.connections = 16);
        let greedy = town.by_token(THEIRS);
        let mut held: Vec<_> = (0..8).map(|_| town.connect(&greedy, "greedy").unwrap()).collect();
        for _ in 0..10 {
            let refused = town.connect(&greedy, "greedy").unwrap_err();
            assert_eq!(code(&refused), ErrorCode::TooMuch);
        }
        let honest: Vec<_> =
            (0..3).map(|_| town.connect(&town.by_token(OURS), "honest").unwrap()).collect();
        held.pop();
        let again = (0..1000).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            town.connect(&greedy, "greedy").ok()
        });
        assert!(again.is_some(), "a place is free again");
        drop(honest);
    }
}
