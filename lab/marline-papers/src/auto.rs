//! Key `auto`: tests whether the scheduler `auto` over `cubic-westwood` is good enough to be the default.
//!
//! There are two sets of links. The first is every recorded pair of links. Results of the half on which the
//! scheduler was tuned are shown, and those of the other half are judged. The second is pairs of links that are
//! generated from the root, of kinds that are hard for a scheduler that uses both paths. These only have to show
//! that the best single path is not better.

mod calibration;
mod cell;
mod generated;
mod generator;
pub(crate) mod recorded;
mod setup;
pub(crate) mod violations;

use marline_lab::figure::number;

use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::recorded::figures::Margins;
use crate::roots::Part;
use crate::table::{Reproduction, Table};
use recorded::{PairSubset, View, recorded_pairs};
use setup::{Limits, Setup, TEXT};

const RECORDED: Part = Part::new("recorded", 20, 40);
/// A thousand pairs in total.
const GENERATED: Part = Part::fixed("generated", 20);

/// Evaluation of the default scheduler, `auto`, on recorded and generated links.
pub(super) struct Auto;

impl Paper for Auto {
    fn key(&self) -> &'static str {
        "auto"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Setup>::parse(TEXT)?;
        let (setup, limits) = (Setup::from_file(&file, context), Limits::from_file(&file)?);
        let mut result = Reproduction::default();
        judge_recorded_pairs(context, &setup, &limits, &mut result)?;
        on_generated(context, &setup, &limits, &mut result)?;
        let Margins { share, ms } = limits.margins;
        result.notes.push(format!(
            "A case is a pair at one position in its recordings. The five metrics are the median and 99th percentile \
             of echoes and of 100 kB bursts, and goodput. A metric is worse than on the best path alone if it is worse \
             than the better of TCP alone on either path by more than {} % and, for latencies, by more than {} ms.",
            number(100.0 * share),
            number(ms)
        ));
        Ok(result)
    }
}

fn judge_recorded_pairs(
    context: &Context<'_>,
    setup: &Setup,
    limits: &Limits,
    result: &mut Reproduction,
) -> anyhow::Result<()> {
    let Some(pairs) = recorded_pairs(context, "auto", result)? else { return Ok(()) };
    let view = |half| View { setup, limits, pairs: &pairs, half };
    let (samples, mut judged) = context.judge_part(
        RECORDED,
        |root| {
            pairs.iter().map(|pair| cell::run_recorded_pair(context, setup, pair, root)).collect()
        },
        |samples| {
            let view = view(PairSubset::Judged);
            Ok([view.rows(samples), calibration::rows(&view, samples)].concat())
        },
    )?;
    // All these rows together decide how many roots are run.
    let calibrated = calibration::rows(&view(PairSubset::Judged), &samples);
    judged.truncate(judged.len() - calibrated.len());
    let count = |half| pairs.iter().filter(|pair| PairSubset::of_pair(&pair.name) == half).count();
    let title = format!("{} held-out recorded pairs", count(PairSubset::Judged));
    result.tables.push(Table::new("recorded", title, judged));
    let title = format!("{} recorded pairs used for tuning", count(PairSubset::Tuned));
    let tuned = view(PairSubset::Tuned).rows(&samples);
    result.tables.push(Table::new("recorded-tuned", title, tuned));
    result.tables.push(calibration::table(&view(PairSubset::Judged), calibrated));
    let calibrated = calibration::rows(&view(PairSubset::Tuned), &samples);
    result.tables.push(calibration::table(&view(PairSubset::Tuned), calibrated));
    result.grids.extend([
        view(PairSubset::Judged).contestants(&samples),
        view(PairSubset::Tuned).contestants(&samples),
        recorded::grid_by_pair(&samples, &pairs, limits.margins),
        recorded::list(&samples, &pairs, limits.margins),
        calibration::grid_by_pair(&samples, &pairs),
        calibration::list(&samples, &pairs),
    ]);
    Ok(())
}

fn on_generated(
    context: &Context<'_>,
    setup: &Setup,
    limits: &Limits,
    result: &mut Reproduction,
) -> anyhow::Result<()> {
    let samples = context.sample(GENERATED, |root| generated::measure(context, setup, root))?;
    let pairs: usize = samples.all().iter().map(Vec::len).sum();
    let title = format!("{pairs} generated pairs, compared with the better path alone");
    result.tables.push(Table::new("generated", title, generated::rows(&samples, limits)));
    result
        .grids
        .extend([generated::grid_by_kind(&samples, limits), generated::list(&samples, limits)]);
    Ok(())
}
