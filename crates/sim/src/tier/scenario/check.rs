//! Checks of a scenario file: defaults, names that must exist, sizes that must fit.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use forebay_core::{
    ByteSize,
    tier::{Bucket, Disks, HistorySettings, PolicyKind, WriteSettings},
    units::ByteRate,
};
use toml::Spanned;

use super::{Scenario, Setup, file};
use crate::{
    scenario_file::{ScenarioError, Source},
    tier::{
        generator,
        workload::{Announced, Order, Part, Reader, Workload},
    },
};

/// Lowest rate of a job. A slower one would read for years.
const RATE_MIN: ByteSize = ByteSize(1000);
const SEGMENT: ByteSize = ByteSize::kib(256);
const SEGMENT_MIN: ByteSize = ByteSize::kib(4);
const SEGMENT_MAX: ByteSize = ByteSize::mib(1024);
/// Most reads. The optimum needs eight bytes per read.
const READS_MAX: u64 = 200_000_000;
const JOBS_MAX: u32 = 10_000;
const PARTS_MAX: usize = 200_000;
const NODES_MAX: u32 = 1000;
const COLUMNS_MAX: u32 = 64;
/// Segments of a region of 64 MiB, if a node's flash has enough regions then.
const REGION_SEGMENTS: u32 = 255;
const REGIONS_MIN: u64 = 64;
const READERS_MAX: u32 = 10_000;
const WAVES_MAX: u32 = 1000;
const DAYS_MAX: u32 = 400;
const TABLES_MAX: u32 = 1000;

pub(super) fn check(
    source: &Source<'_>,
    name: &str,
    seed: Option<u64>,
) -> Result<Scenario, ScenarioError> {
    let file: file::File =
        toml::from_str(source.text).map_err(|error| source.syntax_error(&error))?;
    let seed = seed.or(file.seed).unwrap_or(0);
    let checker = Checker { source, file: &file, seed };
    let mut scenario = Scenario {
        name: name.to_owned(),
        about: file.about.clone(),
        policy: file.policy.map_or(PolicyKind::NextUse, |policy| policy.0),
        setups: Vec::new(),
    };
    if file.variant.is_empty() {
        scenario.setups.push(checker.setup(None)?);
    }
    for (index, variant) in file.variant.iter().enumerate() {
        let earlier = file.variant[..index].iter().map(|variant| &variant.get_ref().name);
        source.check_name("variant", &variant.get_ref().name, earlier)?;
        scenario.setups.push(checker.setup(Some(variant.get_ref()))?);
    }
    Ok(scenario)
}

struct Checker<'a> {
    source: &'a Source<'a>,
    file: &'a file::File,
    seed: u64,
}

/// A partition: its name and the range of its parts, one per column group.
struct Partition {
    name: String,
    parts: Range<u32>,
}

impl Checker<'_> {
    fn setup(&self, variant: Option<&file::Variant>) -> Result<Setup, ScenarioError> {
        let file = self.file;
        let segment = self.segment()?;
        let vary = variant.and_then(|variant| variant.vary.as_ref()).or(file.vary.as_ref());
        let vary = match vary {
            Some(vary) if vary.get_ref().0.0 >= 1.0 => {
                let problem = "rates that `vary` by 100% may be zero; write less than 100%";
                return Err(self.source.error_at(&vary.span(), problem));
            }
            Some(vary) => vary.get_ref().0.0,
            None => 0.0,
        };
        let mut workload =
            Workload { segment, parts: Vec::new(), jobs: Vec::new(), vary, seed: self.seed };
        let (mut expert, mut waves) = (BTreeSet::new(), Vec::new());
        if let Some(generator) = &file.generator {
            if let Some(at) =
                file.partition.first().map(Spanned::span).or(file.job.first().map(Spanned::span))
            {
                let problem = "a scenario has a [generator], or partitions and jobs of its own; \
                               leave one out";
                return Err(self.source.error_at(&at, problem));
            }
            self.generated(generator, &mut workload, &mut expert)?;
        } else {
            let partitions = self.partitions(&mut workload)?;
            waves = self.jobs(&partitions, &mut workload)?;
            for name in file.tier.expert.iter().flatten() {
                let partition = self.partition(name, &partitions)?;
                expert.extend(partition.parts.clone().map(Bucket));
            }
        }
        if let Some(announced) = variant.and_then(|variant| variant.announced) {
            workload.jobs.iter_mut().for_each(|job| job.announced = announced.0);
        }
        if let Some(order) = variant.and_then(|variant| variant.order) {
            workload.jobs.iter_mut().for_each(|job| job.order = order.0);
        }
        let skew =
            variant.and_then(|variant| variant.skew).or(file.skew).map_or(0.0, |skew| skew.0.0);
        if file.generator.is_none() {
            launch(&mut workload, &waves, skew);
        }
        if workload.reads() > READS_MAX {
            let problem = format!(
                "the jobs make {} reads; raise `segment` until there are at most {READS_MAX}",
                workload.reads()
            );
            return Err(self.source.error_at(&(0..0), problem));
        }
        self.tier(variant, workload, expert)
    }

    fn segment(&self) -> Result<ByteSize, ScenarioError> {
        let Some(written) = &self.file.segment else { return Ok(SEGMENT) };
        let segment = written.get_ref().0;
        if (SEGMENT_MIN..=SEGMENT_MAX).contains(&segment) {
            return Ok(segment);
        }
        let problem = format!("`segment` is {segment}; write {SEGMENT_MIN} to {SEGMENT_MAX}");
        Err(self.source.error_at(&written.span(), problem))
    }

    fn tier(
        &self,
        variant: Option<&file::Variant>,
        workload: Workload,
        expert: BTreeSet<Bucket>,
    ) -> Result<Setup, ScenarioError> {
        let tier = &self.file.tier;
        let flash = variant.and_then(|variant| variant.flash.as_ref()).unwrap_or(&tier.flash);
        let nodes = match &tier.nodes {
            Some(nodes) => self.source.between("nodes", nodes, 1_u32, NODES_MAX)?,
            None => 1,
        };
        if flash.get_ref().0.0 / u64::from(nodes) < workload.segment.0 {
            let problem = format!(
                "a `flash` of {} does not hold a segment of {} on each node; raise it",
                flash.get_ref().0,
                workload.segment
            );
            return Err(self.source.error_at(&flash.span(), problem));
        }
        let flash_segments = flash.get_ref().0.0 / u64::from(nodes) / workload.segment.0;
        let region = variant.and_then(|variant| variant.region_segments.as_ref());
        let region_segments = if let Some(segments) = region.or(tier.region_segments.as_ref()) {
            let most = u32::try_from(flash_segments - 1).unwrap_or(u32::MAX).max(1);
            self.source.between("region_segments", segments, 1_u32, most)?
        } else {
            let most = u32::try_from(flash_segments / REGIONS_MIN).unwrap_or(u32::MAX);
            most.clamp(1, REGION_SEGMENTS)
        };
        if flash_segments / u64::from(region_segments) > u64::from(u32::MAX) {
            let problem = "a `flash` of more than 2^32 regions; raise `segment`";
            return Err(self.source.error_at(&flash.span(), problem));
        }
        let mut writes = WriteSettings {
            limit: variant.and_then(|v| v.write_limit).or(tier.write_limit).map(|rate| rate.0),
            ..WriteSettings::default()
        };
        let threshold =
            variant.and_then(|v| v.threshold_min.as_ref()).or(tier.threshold_min.as_ref());
        if let Some(threshold) = threshold {
            writes.threshold_min = *threshold.get_ref();
            if !(0.0..=100.0).contains(&writes.threshold_min) {
                let problem = "`threshold_min` is a number of reads; write 0.0 to 100.0";
                return Err(self.source.error_at(&threshold.span(), problem));
            }
        }
        if let Some(refresh) = &tier.refresh {
            writes.refresh = refresh.get_ref().0;
            if writes.refresh < Duration::from_millis(1) {
                let problem = "`refresh` is too short; write 1ms or more";
                return Err(self.source.error_at(&refresh.span(), problem));
            }
        }
        let mut history = HistorySettings::default();
        if let Some(window) = tier.history {
            history.window = window.0;
            // 72 intervals, as by default.
            history.interval = (window.0 / 72).max(Duration::from_secs(1));
        }
        history.segments_max = tier.history_segments.unwrap_or(history.segments_max).max(1);
        Ok(Setup {
            variant: variant.map(|variant| variant.name.get_ref().clone()),
            workload,
            nodes,
            dram: tier.dram.map_or(ByteSize::ZERO, |size| size.0),
            flash: flash.get_ref().0,
            region_segments,
            writes,
            history,
            reinsertion: variant.and_then(|v| v.reinsertion).or(tier.reinsertion).unwrap_or(false),
            expert,
            disks: self
                .file
                .disks
                .as_ref()
                .map(|disks| Disks { capacity: disks.capacity.0, bandwidth: disks.bandwidth.0 }),
        })
    }

    fn partitions(&self, workload: &mut Workload) -> Result<Vec<Partition>, ScenarioError> {
        let written = &self.file.partition;
        if written.is_empty() {
            let problem =
                "there is no partition; add [[partition]] with name and size, or a [generator]";
            return Err(self.source.error_at(&(0..0), problem));
        }
        let mut partitions: Vec<Partition> = Vec::new();
        for (index, spanned) in written.iter().enumerate() {
            let partition = spanned.get_ref();
            let earlier = written[..index].iter().map(|partition| &partition.get_ref().name);
            self.source.check_name("partition", &partition.name, earlier)?;
            let count = self.count("count", partition.count.as_ref(), 10_000)?;
            let columns = self.count("columns", partition.columns.as_ref(), COLUMNS_MAX)?;
            let size = partition.size.get_ref().0;
            let segments = size.0 / u64::from(columns) / workload.segment.0;
            let Some(segments) = u32::try_from(segments).ok().filter(|segments| *segments > 0)
            else {
                let problem = format!(
                    "a `size` of {size} in {columns} columns gives no segment of {}, or more than \
                     2^32; change one of them",
                    workload.segment
                );
                return Err(self.source.error_at(&partition.size.span(), problem));
            };
            let table = u32::try_from(index).expect("fewer than 2^32 tables");
            for number in 1..=count {
                let name = numbered(partition.name.get_ref(), number, count);
                if partitions.iter().any(|other| other.name == name) {
                    let problem = format!("two partitions would be called `{name}`; rename one");
                    return Err(self.source.error_at(&partition.name.span(), problem));
                }
                let first = u32::try_from(workload.parts.len()).expect("fewer than 2^32 parts");
                for _ in 0..columns {
                    add_part(workload, &name, segments, table)
                        .map_err(|problem| self.source.error_at(&partition.size.span(), problem))?;
                }
                partitions.push(Partition { name, parts: first..first + columns });
            }
        }
        Ok(partitions)
    }

    fn jobs(
        &self,
        partitions: &[Partition],
        workload: &mut Workload,
    ) -> Result<Vec<u32>, ScenarioError> {
        let written = &self.file.job;
        if written.is_empty() {
            let problem = "there is no job; add [[job]] with name, reads and rate";
            return Err(self.source.error_at(&(0..0), problem));
        }
        let mut waves = Vec::new();
        for (index, spanned) in written.iter().enumerate() {
            let job = spanned.get_ref();
            let earlier = written[..index].iter().map(|job| &job.get_ref().name);
            self.source.check_name("job", &job.name, earlier)?;
            let columns = match &job.columns {
                Some(columns) => self.source.between("columns", columns, 1_u32, COLUMNS_MAX)?,
                None => COLUMNS_MAX,
            };
            let stages = |named: &Spanned<Vec<Spanned<String>>>| {
                if named.get_ref().is_empty() {
                    let problem = "a job without partitions reads nothing; name at least one";
                    return Err(self.source.error_at(&named.span(), problem));
                }
                let mut stages: Vec<Vec<u32>> = Vec::new();
                for name in named.get_ref() {
                    let partition = self.partition(name, partitions)?;
                    let stage: Vec<u32> = partition.parts.clone().take(columns as usize).collect();
                    if stages.contains(&stage) {
                        let problem = format!(
                            "`{}` is named twice, but a job reads its rows once; leave one out",
                            name.get_ref()
                        );
                        return Err(self.source.error_at(&name.span(), problem));
                    }
                    stages.push(stage);
                }
                Ok(stages)
            };
            let readers = self.count("readers", job.readers.as_ref(), READERS_MAX)?;
            let wave = self.count("wave", job.wave.as_ref(), WAVES_MAX)?;
            let stops_after = match &job.stops_after {
                Some(share) if share.get_ref().0.0 <= 0.0 => {
                    let problem = "a job that stops after 0% reads nothing; write more than 0%";
                    return Err(self.source.error_at(&share.span(), problem));
                }
                Some(share) => share.get_ref().0.0,
                None => 1.0,
            };
            if job.rate.0.0 < RATE_MIN {
                let problem = "a job with less than 1 kB/s would read for years; raise `rate`";
                return Err(self.source.error_at(&spanned.span(), problem));
            }
            let rate = ByteRate(ByteSize(job.rate.0.0.0.saturating_mul(u64::from(readers))));
            let reader = Reader {
                name: String::new(),
                stages: stages(&job.reads)?,
                says: job.says.as_ref().map(stages).transpose()?,
                launched: Duration::ZERO,
                starts: Duration::ZERO,
                rate,
                readers,
                order: job.order.map_or(Order::Sequence, |order| order.0),
                announced: job.announced.map_or(Announced::Launch, |announced| announced.0),
                stops_after,
            };
            let count = self.count("count", job.count.as_ref(), JOBS_MAX)?;
            for number in 1..=count {
                let name = numbered(job.name.get_ref(), number, count);
                workload.jobs.push(Reader { name, ..reader.clone() });
                waves.push(wave);
            }
            if workload.jobs.len() > JOBS_MAX as usize {
                let problem = format!("there are more than {JOBS_MAX} jobs; lower `count`");
                return Err(self.source.error_at(&spanned.span(), problem));
            }
        }
        Ok(waves)
    }

    fn generated(
        &self,
        written: &Spanned<file::Generator>,
        workload: &mut Workload,
        expert: &mut BTreeSet<Bucket>,
    ) -> Result<(), ScenarioError> {
        let generator = written.get_ref();
        let plan = generator::Plan {
            tables: self.source.between("tables", &generator.tables, 1_u32, TABLES_MAX)?,
            days: self.source.between("days", &generator.days, 1_u32, DAYS_MAX)?,
            partition: generator.partition.get_ref().0,
            jobs: self.source.between("jobs", &generator.jobs, 1_u32, JOBS_MAX)?,
            over: generator.over.get_ref().0,
            rate: generator.rate.0,
        };
        let parts = u64::from(plan.tables) * u64::from(plan.days) * u64::from(generator::COLUMNS);
        let part = plan.partition.0 / u64::from(generator::COLUMNS) / workload.segment.0;
        if parts > PARTS_MAX as u64 || part == 0 || parts.saturating_mul(part) > u64::from(u32::MAX)
        {
            let problem = format!(
                "there are {parts} parts of {part} segments each; change `partition`, `tables` or \
                 `days` to get at least 1 segment per part, and at most {PARTS_MAX} parts and 2^32 \
                 segments"
            );
            return Err(self.source.error_at(&generator.partition.span(), problem));
        }
        let expert_tables = match &generator.expert_tables {
            Some(tables) => self.source.between("expert_tables", tables, 1_u32, plan.tables)?,
            None => 1,
        };
        let (parts, jobs) = generator::generate(&plan, workload.segment, self.seed);
        let admitted = parts.iter().enumerate().filter(|(_, part)| part.table < expert_tables);
        expert.extend(
            admitted.map(|(at, _)| Bucket(u32::try_from(at).expect("fewer than 2^32 parts"))),
        );
        (workload.parts, workload.jobs) = (parts, jobs);
        Ok(())
    }

    fn partition<'p>(
        &self,
        name: &Spanned<String>,
        partitions: &'p [Partition],
    ) -> Result<&'p Partition, ScenarioError> {
        let found = partitions.iter().find(|partition| partition.name == *name.get_ref());
        found.ok_or_else(|| {
            let names: Vec<&str> = partitions.iter().map(|partition| &*partition.name).collect();
            let problem = format!(
                "there is no partition `{}`; there are {}",
                name.get_ref(),
                names.join(", ")
            );
            self.source.error_at(&name.span(), problem)
        })
    }

    /// A number from 1 to `max`; 1 by default.
    fn count(
        &self,
        name: &str,
        value: Option<&Spanned<u32>>,
        max: u32,
    ) -> Result<u32, ScenarioError> {
        value.map_or(Ok(1), |value| self.source.between(name, value, 1_u32, max))
    }
}

/// Sets the start of each job. A wave starts when the one before is done, and its jobs start evenly
/// spread over the skew.
fn launch(workload: &mut Workload, waves: &[u32], skew: f64) {
    let mut begins = Duration::ZERO;
    for wave in BTreeSet::from_iter(waves) {
        let members: Vec<usize> = (0..waves.len()).filter(|job| waves[*job] == *wave).collect();
        let durations = members.iter().map(|job| workload.duration(&workload.jobs[*job]));
        let longest = durations.max().unwrap_or_default();
        let mut ends = begins;
        for (rank, index) in members.iter().enumerate() {
            let share = rank as f64 / (members.len() - 1).max(1) as f64;
            let starts = begins + longest.mul_f64(skew * share);
            let job = &mut workload.jobs[*index];
            (job.launched, job.starts) = (begins, starts);
            ends = ends.max(starts + workload.duration(&workload.jobs[*index]));
        }
        begins = ends;
    }
}

fn numbered(name: &str, number: u32, of: u32) -> String {
    if of == 1 { name.to_owned() } else { format!("{name}-{number}") }
}

fn add_part(workload: &mut Workload, name: &str, segments: u32, table: u32) -> Result<(), String> {
    let first =
        workload.parts.last().map_or(0, |part| u64::from(part.first) + u64::from(part.segments));
    let first = u32::try_from(first).ok().filter(|first| first.checked_add(segments).is_some());
    let first = first.ok_or("there are more than 2^32 segments; raise `segment`")?;
    workload.parts.push(Part { name: name.to_owned(), segments, first, table });
    Ok(())
}
