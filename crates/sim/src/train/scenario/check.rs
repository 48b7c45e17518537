//! From what was written to what can be run: defaults, names that must exist, sizes that must fit.

use std::{ops::Range, time::Duration};

use forebay_core::{ByteSize, JobId, chunking::Chunking};
use toml::Spanned;

use super::{
    Cache, Dataset, End, Fault, FaultKind, Job, Origin, Scenario, ScenarioError, Setup, file,
};
use crate::{
    train::policy::Policy,
    written::{Capacity, Source, Text},
};

/// A permutation of so many items takes 400 MB for every job.
const ITEMS_MAX: u64 = 100_000_000;
/// Many more than any cluster of a scenario, and few enough to simulate.
const JOBS_MAX: u32 = 1000;
const NODES_MAX: u32 = 10_000;
const BATCH_MAX: u32 = 1 << 20;
/// Of workers, batches under way, connections, GPUs, epochs.
const FEW_MAX: u32 = 1 << 16;

pub(super) fn check(source: &Source<'_>, name: &str) -> Result<Scenario, ScenarioError> {
    let file: file::File =
        toml::from_str(source.text).map_err(|error| source.unreadable(&error))?;
    let checker = Checker { source, file: &file };
    checker.scenario(name)
}

struct Checker<'a> {
    source: &'a Source<'a>,
    file: &'a file::File,
}

impl Checker<'_> {
    fn scenario(&self, name: &str) -> Result<Scenario, ScenarioError> {
        let file = self.file;
        let start = 0..0;
        if file.dataset.is_empty() {
            let remedy = "add [[dataset]] with name, size and items";
            return Err(self.refuse(&start, format!("there is no dataset; {remedy}")));
        }
        if file.job.is_empty() {
            let remedy = "add [[job]] with name, dataset, batch and compute";
            return Err(self.refuse(&start, format!("there is no job; {remedy}")));
        }
        let datasets = self.datasets()?;
        let warm_up = file.warm_up.as_ref().map_or(Duration::ZERO, |time| time.get_ref().0);
        let duration = file.duration.as_ref().map(|time| time.get_ref().0);
        if let (Some(warm_up), Some(duration)) = (&file.warm_up, &file.duration)
            && warm_up.get_ref().0 >= duration.get_ref().0
        {
            let problem = "`warm_up` leaves nothing to count; make `duration` longer";
            return Err(self.refuse(&warm_up.span(), problem));
        }
        let jobs = self.jobs(&datasets)?;
        let nodes = match &file.cache.nodes {
            Some(nodes) => self.source.within("nodes", nodes, 1, NODES_MAX)?,
            None => 1,
        };
        let cache = Cache {
            nodes,
            read_bandwidth: file.cache.read_bandwidth.0,
            network: file.cache.network.map(|rate| rate.0),
        };
        let origin = Origin {
            bandwidth: file.origin.bandwidth.0,
            per_connection: file.origin.per_connection.map_or(file.origin.bandwidth.0, |r| r.0),
            latency: file.origin.latency.map_or(Duration::ZERO, |time| time.0),
        };
        let faults = self.faults(&jobs, nodes)?;
        let mut scenario = Scenario {
            name: name.to_owned(),
            about: file.about.clone(),
            policy: file.policy.map_or(Policy::Forebay, |policy| policy.0),
            seed: file.seed.unwrap_or(0),
            setups: Vec::new(),
        };
        let groups: Vec<&str> =
            file.job.iter().map(|job| &**job.get_ref().name.get_ref()).collect();
        let whole = Setup {
            variant: None,
            warm_up,
            duration,
            origin,
            cache,
            capacity: ByteSize::ZERO,
            datasets,
            jobs,
            faults,
        };
        if file.variant.is_empty() {
            let setup = self.setup(&whole, &groups, &file.cache.capacity)?;
            scenario.setups.push(setup);
        }
        for (index, variant) in file.variant.iter().enumerate() {
            let variant = variant.get_ref();
            let earlier = file.variant[..index].iter().map(|variant| &variant.get_ref().name);
            self.source.name_is_new("variant", &variant.name, earlier)?;
            let kept = match &variant.jobs {
                Some(named) => self.named_groups(named, &groups)?,
                None => groups.clone(),
            };
            let capacity = variant.capacity.as_ref().unwrap_or(&file.cache.capacity);
            let mut setup = self.setup(&whole, &kept, capacity)?;
            setup.variant = Some(variant.name.get_ref().clone());
            scenario.setups.push(setup);
        }
        Ok(scenario)
    }

    /// The part of the whole that concerns these groups of jobs, with this much cache.
    fn setup(
        &self,
        whole: &Setup,
        groups: &[&str],
        capacity: &Spanned<Text<Capacity>>,
    ) -> Result<Setup, ScenarioError> {
        let mut setup = whole.clone();
        setup.jobs.retain(|job| groups.contains(&&*job.group));
        let read = |at: usize| {
            whole.jobs.iter().any(|job| groups.contains(&&*job.group) && job.dataset == at)
        };
        let mut kept = Vec::new();
        for (at, dataset) in whole.datasets.iter().enumerate() {
            if read(at) {
                let place = kept.len();
                kept.push(dataset.clone());
                let jobs = setup
                    .jobs
                    .iter_mut()
                    .zip(whole.jobs.iter().filter(|job| groups.contains(&&*job.group)));
                for (job, original) in jobs {
                    if original.dataset == at {
                        job.dataset = place;
                    }
                }
            }
        }
        setup.datasets = kept;
        setup.faults.retain(|fault| match &fault.kind {
            FaultKind::JobDies { job, .. } => setup.jobs.iter().any(|kept| kept.name == *job),
            _ => true,
        });
        setup.capacity = match capacity.get_ref().0 {
            Capacity::Bytes(bytes) => bytes,
            Capacity::Share(share) => {
                setup.datasets.iter().map(|dataset| share_of(dataset, share)).sum()
            }
        };
        let smallest = setup.datasets.iter().min_by_key(|dataset| dataset.chunk_size());
        let smallest = smallest.expect("jobs read at least one dataset");
        if setup.capacity < smallest.chunk_size() {
            let (capacity_is, chunk) = (setup.capacity, smallest.chunk_size());
            let problem = format!(
                "the `capacity` of {capacity_is} holds no chunk ({chunk} of `{}`); raise it, or cut the dataset into more `chunks`",
                smallest.name
            );
            return Err(self.refuse(&capacity.span(), problem));
        }
        Ok(setup)
    }

    fn datasets(&self) -> Result<Vec<Dataset>, ScenarioError> {
        let mut datasets = Vec::new();
        for (index, written) in self.file.dataset.iter().enumerate() {
            let written = written.get_ref();
            let earlier = self.file.dataset[..index].iter().map(|dataset| &dataset.get_ref().name);
            self.source.name_is_new("dataset", &written.name, earlier)?;
            let items = *written.items.get_ref();
            if !(1..=ITEMS_MAX).contains(&items) {
                let problem = format!("`items` is {items}; write 1 to {ITEMS_MAX}");
                return Err(self.refuse(&written.items.span(), problem));
            }
            let size = written.size.get_ref().0;
            let item_bytes = size.0 / items;
            if item_bytes == 0 {
                let problem = format!(
                    "a `size` of {size} is less than a byte for each of the {items} items; raise it"
                );
                return Err(self.refuse(&written.size.span(), problem));
            }
            let total = ByteSize(item_bytes * items);
            let chunking = match &written.chunks {
                Some(chunks) => Chunking::into_chunks(*chunks.get_ref(), items)
                    .map_err(|error| self.refuse(&chunks.span(), format!("`chunks`: {error}")))?,
                None => Chunking::for_dataset(total, items),
            };
            let name = written.name.get_ref().clone();
            datasets.push(Dataset { name, items, item_bytes, chunking });
        }
        Ok(datasets)
    }

    fn jobs(&self, datasets: &[Dataset]) -> Result<Vec<Job>, ScenarioError> {
        let mut jobs: Vec<Job> = Vec::new();
        for (index, spanned) in self.file.job.iter().enumerate() {
            let written = spanned.get_ref();
            let earlier = self.file.job[..index].iter().map(|job| &job.get_ref().name);
            self.source.name_is_new("job", &written.name, earlier)?;
            let wanted = written.dataset.get_ref();
            let place = datasets.iter().position(|dataset| dataset.name == *wanted);
            let Some(dataset) = place else {
                let names = datasets.iter().map(|dataset| &*dataset.name).collect::<Vec<_>>();
                let problem = format!(
                    "there is no dataset `{wanted}`; there are {}, or add a [[dataset]]",
                    names.join(", ")
                );
                return Err(self.refuse(&written.dataset.span(), problem));
            };
            let few = |name: &str, value: &Option<Spanned<u32>>, otherwise: u32| match value {
                Some(value) => self.source.within(name, value, 1, FEW_MAX),
                None => Ok(otherwise),
            };
            let workers = few("workers", &written.workers, 4)?;
            let job = Job {
                name: String::new(),
                group: written.name.get_ref().clone(),
                dataset,
                gpus: few("gpus", &written.gpus, 1)?,
                batch: self.source.within("batch", &written.batch, 1, BATCH_MAX)?,
                compute: written.compute.0,
                transform: written.transform.map_or(Duration::ZERO, |time| time.0),
                workers,
                // PyTorch's `prefetch_factor` is two for every worker; one more is on the GPU.
                depth: few("depth", &written.depth, 2 * workers + 1)?,
                connections: few("connections", &written.connections, 8)?,
                starts: written.starts.map_or(Duration::ZERO, |time| time.0),
                end: self.end(spanned)?,
            };
            let count = match &written.count {
                Some(count) => self.source.within("count", count, 1, JOBS_MAX)?,
                None => 1,
            };
            for number in 1..=count {
                let group = &job.group;
                let name = if count == 1 { group.clone() } else { format!("{group}-{number}") };
                if name.parse::<JobId>().is_err() || jobs.iter().any(|job| job.name == name) {
                    let problem = format!("two jobs would be called `{name}`; name one otherwise");
                    return Err(self.refuse(&written.name.span(), problem));
                }
                jobs.push(Job { name, ..job.clone() });
            }
            if jobs.len() > JOBS_MAX as usize {
                let problem = format!("these are more than {JOBS_MAX} jobs; lower `count`");
                return Err(self.refuse(&spanned.span(), problem));
            }
        }
        Ok(jobs)
    }

    fn end(&self, job: &Spanned<file::Job>) -> Result<End, ScenarioError> {
        let written = job.get_ref();
        match (&written.epochs, &written.batches) {
            (Some(_), Some(batches)) => {
                let problem = "a job ends after `epochs` or after `batches`; leave one out";
                Err(self.refuse(&batches.span(), problem))
            }
            (Some(epochs), None) => {
                Ok(End::Epochs(self.source.within("epochs", epochs, 1, FEW_MAX)?))
            }
            (None, Some(batches)) if *batches.get_ref() == 0 => {
                Err(self.refuse(&batches.span(), "`batches` is 0; write at least 1"))
            }
            (None, Some(batches)) => Ok(End::Batches(*batches.get_ref())),
            (None, None) if self.file.duration.is_some() => Ok(End::Never),
            (None, None) => {
                let problem = "this job would never end; give it `epochs` or `batches`, or the scenario a `duration`";
                Err(self.refuse(&job.span(), problem))
            }
        }
    }

    fn faults(&self, jobs: &[Job], nodes: u32) -> Result<Vec<Fault>, ScenarioError> {
        let mut faults = Vec::new();
        for spanned in &self.file.fault {
            let written = spanned.get_ref();
            let lasting = written.lasting.map(|time| time.0);
            let kind = match (&written.job, &written.node, &written.origin) {
                (Some(job), None, None) => {
                    if !jobs.iter().any(|known| known.name == *job.get_ref()) {
                        let names = jobs.iter().map(|job| &*job.name).collect::<Vec<_>>();
                        let problem = format!(
                            "there is no job `{}`; there are {}",
                            job.get_ref(),
                            names.join(", ")
                        );
                        return Err(self.refuse(&job.span(), problem));
                    }
                    FaultKind::JobDies { job: job.get_ref().clone(), back_after: lasting }
                }
                (None, Some(node), None) => {
                    if lasting.is_some() {
                        let problem =
                            "a node that is lost comes back empty at once; leave out `for`";
                        return Err(self.refuse(&spanned.span(), problem));
                    }
                    FaultKind::NodeLost(self.source.within("node", node, 1, nodes)?)
                }
                (None, None, Some(rate)) => {
                    let Some(lasting) = lasting else {
                        let problem = "say how long the origin is slow, such as for = \"1min\"";
                        return Err(self.refuse(&spanned.span(), problem));
                    };
                    FaultKind::OriginSlow { bandwidth: rate.0, lasting }
                }
                _ => {
                    let problem = "a fault concerns one of `job`, `node` and `origin`; name one";
                    return Err(self.refuse(&spanned.span(), problem));
                }
            };
            faults.push(Fault { at: written.at.0, kind });
        }
        Ok(faults)
    }

    fn named_groups<'b>(
        &self,
        named: &'b Spanned<Vec<Spanned<String>>>,
        groups: &[&str],
    ) -> Result<Vec<&'b str>, ScenarioError> {
        for name in named.get_ref() {
            if !groups.contains(&&**name.get_ref()) {
                let problem = format!(
                    "there is no job `{}`; there are {}",
                    name.get_ref(),
                    groups.join(", ")
                );
                return Err(self.refuse(&name.span(), problem));
            }
        }
        if named.get_ref().is_empty() {
            return Err(
                self.refuse(&named.span(), "a variant without `jobs` shows nothing; name some")
            );
        }
        Ok(named.get_ref().iter().map(|name| &**name.get_ref()).collect())
    }

    fn refuse(&self, at: &Range<usize>, problem: impl Into<String>) -> ScenarioError {
        self.source.refuse(at, problem)
    }
}

/// A share in chunks of full size: a tenth of ten chunks is one, though they differ by an item.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a size, rounded up to a byte"
)]
fn share_of(dataset: &Dataset, share: f64) -> ByteSize {
    let all = u64::from(dataset.chunking.chunks()) * dataset.chunk_size().0;
    ByteSize((all as f64 * share).ceil() as u64)
}
