//! `forebay sim power`: whether a flash tier saves power.

use anyhow::ensure;
use forebay_core::{ByteSize, units::ByteRate};
use forebay_sim::tier::{Demand, power};

use crate::output::{self, Format, Verdict};

/// What has to be stored and delivered.
#[derive(Debug, clap::Args)]
pub struct PowerArgs {
    /// What is stored.
    #[arg(long, value_name = "SIZE", default_value = "100PB")]
    storage: ByteSize,
    /// What is read.
    #[arg(long, value_name = "RATE", default_value = "10TB/s")]
    bandwidth: ByteRate,
    /// The flash of the tier.
    #[arg(long, value_name = "SIZE", default_value = "5PB")]
    flash: ByteSize,
    /// What the tier absorbs.
    #[arg(long, value_name = "RATE", default_value = "4TB/s")]
    absorbed: ByteRate,
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub const EXAMPLES: &str = "\
Examples:
  forebay sim power
  forebay sim power --storage 100PB --bandwidth 10TB/s --flash 5PB --absorbed 3TB/s";

pub fn run(args: &PowerArgs) -> anyhow::Result<Verdict> {
    let (read, absorbed, flash) = (args.bandwidth, args.absorbed, args.flash);
    ensure!(absorbed <= read, "--absorbed is {absorbed}, and only {read} are read; lower it");
    ensure!(flash.0 > 0, "without flash there is no tier; name its size with --flash");
    ensure!(args.storage.0 > 0, "--storage is nothing; name what is stored");
    let power = power(Demand {
        storage: args.storage.0 as f64,
        bandwidth: args.bandwidth.0.0 as f64,
        flash: args.flash.0 as f64,
        absorbed: args.absorbed.0.0 as f64,
    });
    match args.format {
        Format::Json => output::json(&power)?,
        Format::Text => {
            let row = |what: &str, power: f64| vec![what.to_owned(), format!("{power:.2}")];
            let rows = [
                row("disks alone", power.disks_only),
                row("flash alone", power.flash_only),
                row("disks for bytes, flash for bandwidth", power.ideal),
                row("this tier: disks", power.disks),
                row("this tier: flash", power.flash),
                row("this tier", power.disks + power.flash),
            ];
            let change = if power.saved < 0.0 { "costs" } else { "saves" };
            let share = power.neutral_absorbed / read.0.0 as f64;
            let neutral = if share <= 1.0 {
                let rate = power.neutral_absorbed / 1e9;
                format!(
                    "It is neutral at {rate:.2} GB/s absorbed, {:.0} % of what is read.",
                    share * 100.0
                )
            } else {
                "Whatever it absorbs, its flash draws more than the disks that it spares."
                    .to_owned()
            };
            output::data(&format!(
                "{}\nOf disks alone the tier {change} {:.0} %. {neutral}\n\
                 1.00 is what the disks draw that just hold 100 PB (Tectonic-Shift, table 1).\n",
                output::table(&["STORAGE", "POWER"], &rows),
                power.saved.abs() * 100.0,
            ))?;
        }
    }
    Ok(Verdict::Yes)
}
