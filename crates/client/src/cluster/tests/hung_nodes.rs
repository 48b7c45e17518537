//! Hung nodes: several cost what one costs (promise 5).

use std::{
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use forebay_auth::Credentials;
use forebay_core::{
    cluster::ring::{Member, NodeList, RingMembership, Seeds, Weight},
    node::presence::KnownPresence,
};
use forebay_wire::{ErrorCode, HEADER_SIZE, Header, OpenAnswer, Refusal, Reply, Request};

use crate::{
    Interrupt, ThisMachine,
    cluster::nodes::{Nodes, RequestContext},
    greeting::Subject,
    handshake::tests::digest,
};

/// How a node hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hang {
    /// It accepts connections and reads nothing: a stopped process.
    Stopped,
    /// It answers hello, and nothing else.
    HelloOnly,
    /// It sends a byte now and then.
    Trickle,
    /// It answers until `is_hung` is set, and then neither old connections nor new ones.
    Later,
    /// It answers pings after `is_hung` is set, and nothing else.
    PingsOnly,
}

/// Time for all calls of a test. Hung nodes that were waited for in turn take more than a second
/// each; all at once they take three.
const STALL_MAX: Duration = Duration::from_secs(15);
/// Calls of each kind.
const ROUNDS: usize = 20;

struct World {
    _directory: tempfile::TempDir,
    seeds: Seeds,
    is_hung: Arc<AtomicBool>,
}

impl World {
    /// One healthy node and `count` others.
    fn new(count: usize, hang: Hang) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |at: usize| directory.path().join(format!("{at}.sock"));
        let member = |at: usize| Member {
            name: format!("node-{at}").parse().unwrap(),
            endpoint: path(at).into(),
            weight: Weight::default(),
            zone: None,
        };
        let list = NodeList::new((0..=count).map(member).collect(), false).unwrap();
        let is_hung = Arc::<AtomicBool>::default();
        for at in 0..=count {
            let name = format!("node-{at}").parse().unwrap();
            let membership = RingMembership::new(name, list.clone()).unwrap();
            let hang = (at > 0).then_some(hang);
            serve(path(at), membership, hang, &is_hung);
        }
        let seeds = Seeds::of_list(list, None).unwrap();
        Self { _directory: directory, seeds, is_hung }
    }
}

/// Serves connections, each in a thread of its own, until the test ends.
fn serve(path: PathBuf, membership: RingMembership, hang: Option<Hang>, is_hung: &Arc<AtomicBool>) {
    let listener = UnixListener::bind(path).unwrap();
    let is_hung = Arc::clone(is_hung);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (membership, is_hung) = (membership.clone(), Arc::clone(&is_hung));
            thread::spawn(move || converse(&mut socket.unwrap(), &membership, hang, &is_hung));
        }
    });
}

/// Answers requests until the client closes or the node hangs.
fn converse(
    socket: &mut UnixStream,
    membership: &RingMembership,
    hang: Option<Hang>,
    is_hung: &AtomicBool,
) -> Option<()> {
    loop {
        let mut header = [0; HEADER_SIZE];
        socket.read_exact(&mut header).ok()?;
        let header = Header::decode(&header).unwrap();
        let mut body = vec![0; header.body_size];
        socket.read_exact(&mut body).ok()?;
        let request = Request::decode(&header, &body.into()).unwrap();
        let is_ping = matches!(request, Request::Hello { .. } | Request::Ring);
        let is_silent = match hang {
            None | Some(Hang::Trickle) => false,
            Some(Hang::Stopped) => true,
            Some(Hang::HelloOnly) => !matches!(request, Request::Hello { .. }),
            Some(Hang::Later) => is_hung.load(SeqCst),
            Some(Hang::PingsOnly) => is_hung.load(SeqCst) && !is_ping,
        };
        let reply = match request {
            Request::Hello { .. } => Reply::Hello { version: 1, lease_ms: 1000 },
            Request::Ring => Reply::Ring(Some(membership.clone())),
            Request::Open { .. } => Reply::OpenAnswer(OpenAnswer::Prove { nonce: [1; 32] }),
            Request::Prove { .. } => Reply::Open { handle: 1 },
            Request::Stats => Reply::Stats { counters: vec![("nodes".to_owned(), 1)] },
            _ => Reply::Error(Refusal { code: ErrorCode::Unknown, text: "no".to_owned() }),
        };
        let reply = reply.encode(header.id).to_bytes();
        if is_silent {
            continue;
        }
        if hang == Some(Hang::Trickle) {
            for byte in reply {
                socket.write_all(&[byte]).ok()?;
                thread::sleep(Duration::from_millis(90));
            }
        } else {
            socket.write_all(&reply).ok()?;
        }
    }
}

/// The number of nodes that answer in each round, and the time of all rounds after the first, in
/// which nodes that hang later answer as well.
fn stall(count: usize, hang: Hang) -> (Vec<u64>, Duration) {
    let world = World::new(count, hang);
    let environment = ThisMachine::shared();
    let mut nodes = Nodes::new(&environment, world.seeds.clone());
    let (digest, credentials, interrupt) =
        (digest("public"), Credentials::default(), Interrupt::default());
    let context = RequestContext {
        environment: &environment,
        subject: Subject::Dataset(&digest),
        job: "job",
        credentials: &credentials,
        interrupt: &interrupt,
    };
    let answering = |nodes: &mut Nodes| nodes.stats(&context).map_or(0, |sums| sums[0].1);
    let mut answers = vec![answering(&mut nodes)];
    world.is_hung.store(true, SeqCst);
    let began = Instant::now();
    for _ in 0..ROUNDS {
        nodes.presence(&context, &mut KnownPresence::new(0));
        answers.push(answering(&mut nodes));
    }
    (answers, began.elapsed())
}

#[test]
fn nodes_that_hang_from_the_beginning_cost_what_one_costs() {
    for hang in [Hang::Stopped, Hang::HelloOnly, Hang::Trickle] {
        for count in [3, 5, 64] {
            let began = Instant::now();
            let (answers, _) = stall(count, hang);
            let stalled = began.elapsed();
            assert_eq!(answers, [1; ROUNDS + 1], "{count} {hang:?}: the healthy node answers");
            assert!(stalled < STALL_MAX, "{count} {hang:?}: {stalled:?}");
        }
    }
}

#[test]
fn connected_nodes_that_hang_cost_what_one_costs() {
    for hang in [Hang::Later, Hang::PingsOnly] {
        for count in [3, 5, 64] {
            let (answers, stalled) = stall(count, hang);
            assert_eq!(answers[0], count as u64 + 1, "all answer at first");
            assert_eq!(answers[ROUNDS], 1, "{count} {hang:?}: the healthy node answers");
            assert!(stalled < STALL_MAX, "{count} {hang:?}: {stalled:?}");
        }
    }
}
