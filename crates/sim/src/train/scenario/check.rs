//! Checks of a scenario file: defaults, names that must exist, sizes that must fit.

use std::{ops::Range, time::Duration};

use forebay_core::{ByteSize, JobName, dataset::chunking::Chunking};
use toml::Spanned;

use super::{
    Cache, Dataset, End, Fault, FaultKind, Job, Origin, Scenario, ScenarioError, Setup,
    file::{self, CHUNKS_MAX, ITEMS_MAX, JOBS_MAX},
};
use crate::{
    scenario_file::{Capacity, Source, Text},
    train::policy::Policy,
};

/// Most items of all jobs. Every job has its own order of its dataset, and this many items take
/// some gigabytes.
const ORDERED_MAX: u64 = 500_000_000;
/// Largest sum of dataset sizes, and largest cache. Sums of a few of these do not overflow.
const SIZE_MAX: ByteSize = ByteSize(1_000_000_000_000_000_000);
const DATASETS_MAX: usize = 1000;
const VARIANTS_MAX: usize = 100;

pub(super) fn check(source: &Source<'_>, name: &str) -> Result<Scenario, ScenarioError> {
    let file: file::File =
        toml::from_str(source.text).map_err(|error| source.syntax_error(&error))?;
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
            return Err(self.error_at(&start, format!("there is no dataset; {remedy}")));
        }
        if file.job.is_empty() {
            let remedy = "add [[job]] with name, dataset, batch and compute";
            return Err(self.error_at(&start, format!("there is no job; {remedy}")));
        }
        if let Some(beyond) = file.variant.get(VARIANTS_MAX) {
            let problem = format!("there are more than {VARIANTS_MAX} variants; leave some out");
            return Err(self.error_at(&beyond.span(), problem));
        }
        let datasets = self.datasets()?;
        let warm_up = file.warm_up.as_ref().map_or(Duration::ZERO, |time| time.get_ref().0);
        let duration = file.duration.as_ref().map(|time| time.get_ref().0);
        if let Some(time) = file.duration.as_ref().filter(|time| time.get_ref().0.is_zero()) {
            let problem = "a `duration` of 0 simulates nothing; write a longer one";
            return Err(self.error_at(&time.span(), problem));
        }
        if let (Some(warm_up), Some(duration)) = (&file.warm_up, &file.duration)
            && warm_up.get_ref().0 >= duration.get_ref().0
        {
            let problem = "`warm_up` leaves nothing to count; make `duration` longer";
            return Err(self.error_at(&warm_up.span(), problem));
        }
        let jobs = self.jobs(&datasets)?;
        let nodes = match &file.cache.nodes {
            Some(nodes) => self.source.within("nodes", nodes)?,
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
            self.source.check_name("variant", &variant.name, earlier)?;
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

    /// The setup of these groups of jobs with this cache.
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
                let index = kept.len();
                kept.push(dataset.clone());
                let jobs = setup
                    .jobs
                    .iter_mut()
                    .zip(whole.jobs.iter().filter(|job| groups.contains(&&*job.group)));
                for (job, original) in jobs {
                    if original.dataset == at {
                        job.dataset = index;
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
            Capacity::Bytes(bytes) if bytes > SIZE_MAX => {
                let problem = format!("the `capacity` is {bytes}; write at most 1000PB");
                return Err(self.error_at(&capacity.span(), problem));
            }
            Capacity::Bytes(bytes) => bytes,
            Capacity::Share(share) => {
                setup.datasets.iter().map(|dataset| share_of(dataset, share)).sum()
            }
        };
        Ok(setup)
    }

    fn datasets(&self) -> Result<Vec<Dataset>, ScenarioError> {
        let mut datasets = Vec::new();
        let (mut all_items, mut all_bytes) = (0, ByteSize::ZERO);
        if let Some(beyond) = self.file.dataset.get(DATASETS_MAX) {
            let problem = format!("there are more than {DATASETS_MAX} datasets; leave some out");
            return Err(self.error_at(&beyond.span(), problem));
        }
        for (index, written) in self.file.dataset.iter().enumerate() {
            let written = written.get_ref();
            let earlier = self.file.dataset[..index].iter().map(|dataset| &dataset.get_ref().name);
            self.source.check_name("dataset", &written.name, earlier)?;
            let items = self.source.within("items", &written.items)?;
            all_items += items;
            if all_items > ITEMS_MAX {
                let problem = format!(
                    "the datasets have more than {ITEMS_MAX} items together; lower `items`"
                );
                return Err(self.error_at(&written.items.span(), problem));
            }
            let size = written.size.get_ref().0;
            all_bytes = ByteSize(all_bytes.0.saturating_add(size.0));
            if all_bytes > SIZE_MAX {
                let problem = "the datasets have more than 1000 PB together; lower `size`";
                return Err(self.error_at(&written.size.span(), problem));
            }
            let item_bytes = size.0 / items;
            if item_bytes == 0 {
                let problem = format!(
                    "a `size` of {size} is less than a byte for each of the {items} items; raise it"
                );
                return Err(self.error_at(&written.size.span(), problem));
            }
            let total = ByteSize(item_bytes * items);
            let chunking = self.chunking(written, total, items)?;
            let name = written.name.get_ref().clone();
            datasets.push(Dataset { name, items, item_bytes, chunking });
        }
        Ok(datasets)
    }

    fn chunking(
        &self,
        dataset: &file::Dataset,
        total: ByteSize,
        items: u64,
    ) -> Result<Chunking, ScenarioError> {
        let Some(written) = &dataset.chunks else {
            let usual = Chunking::for_dataset(total, items);
            let most = Chunking::into_chunks(CHUNKS_MAX.min(items), items);
            let is_too_many = u64::from(usual.chunks()) > CHUNKS_MAX;
            return Ok(most.ok().filter(|_| is_too_many).unwrap_or(usual));
        };
        let chunks = self.source.within("chunks", written)?;
        Chunking::into_chunks(chunks, items).map_err(|_| {
            let problem = format!("`chunks` is {chunks}; write 1 to {items}, one for each item");
            self.error_at(&written.span(), problem)
        })
    }

    fn jobs(&self, datasets: &[Dataset]) -> Result<Vec<Job>, ScenarioError> {
        let mut jobs: Vec<Job> = Vec::new();
        let mut ordered: u64 = 0;
        for (index, spanned) in self.file.job.iter().enumerate() {
            let written = spanned.get_ref();
            let earlier = self.file.job[..index].iter().map(|job| &job.get_ref().name);
            self.source.check_name("job", &written.name, earlier)?;
            let wanted = written.dataset.get_ref();
            let found = datasets.iter().position(|dataset| dataset.name == *wanted);
            let Some(dataset) = found else {
                let names = datasets.iter().map(|dataset| &*dataset.name).collect::<Vec<_>>();
                let problem = format!(
                    "there is no dataset `{wanted}`; there are {}, or add a [[dataset]]",
                    names.join(", ")
                );
                return Err(self.error_at(&written.dataset.span(), problem));
            };
            let count = |name: &str, value: &Option<Spanned<u32>>, default: u32| match value {
                Some(value) => self.source.within(name, value),
                None => Ok(default),
            };
            let workers = count("workers", &written.workers, 4)?;
            let batch = self.source.within("batch", &written.batch)?;
            let items = datasets[dataset].items;
            if u64::from(batch) > items {
                let problem =
                    format!("`batch` is {batch}, but `{wanted}` has {items} items; lower it");
                return Err(self.error_at(&written.batch.span(), problem));
            }
            let compute = written.compute.get_ref().0;
            if compute.is_zero() {
                let problem = "a `compute` of 0 keeps no GPU busy; write at least 0.001ms";
                return Err(self.error_at(&written.compute.span(), problem));
            }
            let job = Job {
                name: String::new(),
                group: written.name.get_ref().clone(),
                dataset,
                gpus: count("gpus", &written.gpus, 1)?,
                batch,
                compute,
                transform: written.transform.map_or(Duration::ZERO, |time| time.0),
                workers,
                // PyTorch's `prefetch_factor` is two per worker; one more is on the GPU.
                depth: count("depth", &written.depth, 2 * workers + 1)?,
                connections: count("connections", &written.connections, 8)?,
                starts: self.starts(written)?,
                end: self.end(spanned)?,
            };
            let count = match &written.count {
                Some(count) => self.source.within("count", count)?,
                None => 1,
            };
            ordered = ordered.saturating_add(u64::from(count).saturating_mul(items));
            if ordered > ORDERED_MAX {
                let problem = format!(
                    "jobs times items are more than {ORDERED_MAX}, too many for memory; lower \
                     `count` or `items`"
                );
                return Err(self.error_at(&spanned.span(), problem));
            }
            for number in 1..=count {
                let group = &job.group;
                let name = if count == 1 { group.clone() } else { format!("{group}-{number}") };
                if let Err(error) = name.parse::<JobName>() {
                    return Err(self.error_at(&written.name.span(), error.to_string()));
                }
                if jobs.iter().any(|job| job.name == name) {
                    let problem = format!("two jobs would be called `{name}`; rename one");
                    return Err(self.error_at(&written.name.span(), problem));
                }
                jobs.push(Job { name, ..job.clone() });
            }
            if jobs.len() as u64 > JOBS_MAX {
                let problem = format!("there are more than {JOBS_MAX} jobs; lower `count`");
                return Err(self.error_at(&spanned.span(), problem));
            }
        }
        Ok(jobs)
    }

    fn starts(&self, job: &file::Job) -> Result<Duration, ScenarioError> {
        let Some(starts) = &job.starts else { return Ok(Duration::ZERO) };
        let end = self.file.duration.as_ref().map_or(Duration::MAX, |time| time.get_ref().0);
        if starts.get_ref().0 >= end {
            let problem = "`starts` is after the end; make it earlier, or `duration` longer";
            return Err(self.error_at(&starts.span(), problem));
        }
        Ok(starts.get_ref().0)
    }

    fn end(&self, job: &Spanned<file::Job>) -> Result<End, ScenarioError> {
        let written = job.get_ref();
        match (&written.epochs, &written.batches) {
            (Some(_), Some(batches)) => {
                let problem = "a job ends after `epochs` or after `batches`; leave one out";
                Err(self.error_at(&batches.span(), problem))
            }
            (Some(epochs), None) => Ok(End::Epochs(self.source.within("epochs", epochs)?)),
            (None, Some(batches)) => Ok(End::Batches(self.source.within("batches", batches)?)),
            (None, None) if self.file.duration.is_some() => Ok(End::Never),
            (None, None) => {
                let problem = "this job would never end; give it `epochs` or `batches`, or the \
                               scenario a `duration`";
                Err(self.error_at(&job.span(), problem))
            }
        }
    }

    fn faults(&self, jobs: &[Job], nodes: u32) -> Result<Vec<Fault>, ScenarioError> {
        let mut faults = Vec::new();
        for spanned in &self.file.fault {
            let written = spanned.get_ref();
            let lasting = written.lasting.map(|time| time.0);
            let at = written.at.get_ref().0;
            if self.file.duration.as_ref().is_some_and(|end| at >= end.get_ref().0) {
                let problem = "the fault is after the end; make `at` earlier, or `duration` longer";
                return Err(self.error_at(&written.at.span(), problem));
            }
            let kind = match (&written.job, &written.node, &written.origin) {
                (Some(job), None, None) => {
                    let Some(known) = jobs.iter().find(|known| known.name == *job.get_ref()) else {
                        let names = jobs.iter().map(|job| &*job.name).collect::<Vec<_>>();
                        let problem = format!(
                            "there is no job `{}`; there are {}",
                            job.get_ref(),
                            names.join(", ")
                        );
                        return Err(self.error_at(&job.span(), problem));
                    };
                    if at < known.starts {
                        let problem =
                            format!("`{}` starts later; make `at` later, too", known.name);
                        return Err(self.error_at(&written.at.span(), problem));
                    }
                    FaultKind::JobDies { job: job.get_ref().clone(), back_after: lasting }
                }
                (None, Some(node), None) => {
                    if lasting.is_some() {
                        let problem = "a lost node returns empty at once; leave out `for`";
                        return Err(self.error_at(&spanned.span(), problem));
                    }
                    let number = self.source.within("node", node)?;
                    if number > nodes {
                        let problem = format!(
                            "there is no node {number}; nodes are counted from 1 to {nodes} \
                             (`nodes`)"
                        );
                        return Err(self.error_at(&node.span(), problem));
                    }
                    FaultKind::NodeLost(number)
                }
                (None, None, Some(rate)) => {
                    let Some(lasting) = lasting else {
                        let problem =
                            "the duration of the slow origin is missing; add for = \"1min\"";
                        return Err(self.error_at(&spanned.span(), problem));
                    };
                    FaultKind::OriginSlow { bandwidth: rate.0, lasting }
                }
                _ => {
                    let problem = "a fault affects one of `job`, `node` and `origin`; name one";
                    return Err(self.error_at(&spanned.span(), problem));
                }
            };
            faults.push(Fault { at, kind });
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
                return Err(self.error_at(&name.span(), problem));
            }
        }
        if named.get_ref().is_empty() {
            return Err(self.error_at(
                &named.span(),
                "a variant without `jobs` simulates nothing; name at least one",
            ));
        }
        Ok(named.get_ref().iter().map(|name| &**name.get_ref()).collect())
    }

    fn error_at(&self, at: &Range<usize>, problem: impl Into<String>) -> ScenarioError {
        self.source.error_at(at, problem)
    }
}

/// A share of a dataset, with all chunks counted at full size: a tenth of ten chunks is one chunk,
/// although chunks differ by an item.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a size, rounded up to a byte"
)]
fn share_of(dataset: &Dataset, share: f64) -> ByteSize {
    let all = u64::from(dataset.chunking.chunks()) * dataset.chunk_size().0;
    ByteSize((all as f64 * share).ceil() as u64)
}
