//! Agent host: the real agent of a job, and the streams by which processes on its machine reach it.

use std::{io, sync::Arc};

use fastrand::Rng;
use forebay_agent::{Agent, Config, Environment};
use forebay_core::{ByteSize, cluster::ring::Seeds};
use forebay_transport::{Accepted, Entropy, Peer};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};

use crate::{
    job::Job,
    network::{HostConnector, HostId},
    pipe::{OpenGuard, Pipe, PipeReader, PipeWriter, Way},
    world::World,
};

/// Bytes that a stream holds in each direction.
const CAPACITY: usize = 256 << 10;

/// The agent of a job, for the processes on its machine.
#[derive(Clone)]
pub struct LocalAgent {
    world: Arc<World>,
    host: HostId,
    arriving: mpsc::UnboundedSender<Accepted<PipeReader, PipeWriter>>,
}

/// Bytes between a process and the agent on its machine: without delay, and stopped with the host.
struct LocalWay {
    world: Arc<World>,
    host: HostId,
}

impl Way for LocalWay {
    fn arrival(&self) -> Instant {
        Instant::now()
    }

    fn blocked_until(&self) -> Instant {
        self.world.network.paused_until(self.host)
    }
}

impl LocalAgent {
    /// Starts the agent of a job. It runs until `tasks` end.
    pub fn start(job: &Job, random: Rng, tasks: &mut JoinSet<()>) -> Self {
        let Job { world, name, host, dataset, credentials, .. } = job;
        let nonces = Mutex::new(random);
        let entropy = Entropy::from_source(move || {
            let mut nonce = [0; 32];
            nonces.lock().fill(&mut nonce);
            nonce
        });
        let connector = Arc::new(HostConnector { network: world.network.clone(), host: *host });
        let agent = Agent::new(
            Config {
                socket: "/nowhere".into(),
                nodes: Seeds::of_list(world.list.clone(), None).expect("one ring"),
                credentials: credentials.clone(),
                job: name.clone(),
                digest: dataset.digest.clone(),
                origin: world.origin.origin(),
                mirror: false,
                namespace: dataset.namespace.clone(),
                memory: ByteSize::mib(1),
            },
            Environment { entropy, connector },
        );
        agent.spawn_background(tasks);
        let (arriving, arrived) = mpsc::unbounded_channel();
        tasks.spawn(serve(agent, arrived));
        Self { world: Arc::clone(world), host: *host, arriving }
    }

    /// Connects a process.
    pub fn connect(&self) -> io::Result<(PipeReader, PipeWriter)> {
        let way = || -> Arc<dyn Way> {
            Arc::new(LocalWay { world: Arc::clone(&self.world), host: self.host })
        };
        let (there, back) = (Pipe::new(way(), CAPACITY), Pipe::new(way(), CAPACITY));
        let (near, far) = (OpenGuard::default(), OpenGuard::default());
        let peer = Peer::Unix { uid: rustix::process::geteuid().as_raw() };
        let accepted = Accepted::new(peer, there.reader(Arc::clone(&far)), back.writer(far));
        self.arriving.send(accepted).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok((back.reader(Arc::clone(&near)), there.writer(near)))
    }
}

/// Serves connections until the job ends.
async fn serve(
    agent: Agent,
    mut arrived: mpsc::UnboundedReceiver<Accepted<PipeReader, PipeWriter>>,
) {
    let mut sessions = JoinSet::new();
    while let Some(accepted) = arrived.recv().await {
        let agent = agent.clone();
        sessions.spawn(async move {
            // The end of a process is the end of its connection.
            let _ = agent.serve(accepted).await;
        });
        while sessions.try_join_next().is_some() {}
    }
}
