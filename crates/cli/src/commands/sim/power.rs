//! `forebay sim power`: the power of a flash tier, as in table 1 of Tectonic-Shift.

use anyhow::ensure;
use forebay_core::{ByteSize, units::ByteRate};
use forebay_sim::tier::{Demand, power};

use crate::output::{self, Format, Verdict};

/// Demand of storage and bandwidth.
#[derive(Debug, clap::Args)]
pub struct PowerArgs {
    /// Store this size.
    #[arg(long, value_name = "SIZE", default_value = "100PB")]
    storage: ByteSize,
    /// Read at this rate.
    #[arg(long, value_name = "RATE", default_value = "10TB/s")]
    bandwidth: ByteRate,
    /// Use this size of flash.
    #[arg(long, value_name = "SIZE", default_value = "5PB")]
    flash: ByteSize,
    /// Absorb this rate in the tier.
    #[arg(long, value_name = "RATE", default_value = "4TB/s")]
    absorbed: ByteRate,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub const EXAMPLES: &str = "\
Examples:
  forebay sim power
  forebay sim power --storage 100PB --bandwidth 10TB/s --flash 5PB --absorbed 3TB/s";

pub fn run(args: &PowerArgs) -> anyhow::Result<Verdict> {
    let (read, absorbed, flash) = (args.bandwidth, args.absorbed, args.flash);
    ensure!(
        absorbed <= read,
        "--absorbed is {absorbed}, but --bandwidth is {read}; lower --absorbed"
    );
    ensure!(flash.0 > 0, "--flash is 0B; use the size of the tier, such as 5PB");
    ensure!(args.storage.0 > 0, "--storage is 0B; use the stored size, such as 100PB");
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
                    "It is neutral at {rate:.2} GB/s absorbed, {:.0} % of the reads.",
                    share * 100.0
                )
            } else {
                "At any rate, its flash uses more power than the disks that it replaces.".to_owned()
            };
            output::data(&format!(
                "{}\nCompared with disks alone, the tier {change} {:.0} % of power. {neutral}\n\
                 1.00 is the power of disks that just hold 100 PB (Tectonic-Shift, table 1).\n",
                output::table(&["STORAGE", "POWER"], &rows),
                power.saved.abs() * 100.0,
            ))?;
        }
    }
    Ok(Verdict::Yes)
}
