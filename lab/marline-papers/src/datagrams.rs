//! Key `datagrams`: tests whether the datagram lane carries a call, a game and an opaque bulk flow within its limits.
//!
//! The links are the recorded pairs of the half that was not used for tuning (as in the key `auto`), a pair with a
//! link that dies, and a pair with a link that loses packets.

mod cell;
mod lossy;
mod rows;
mod setup;

use crate::auto::recorded::{PairSubset, recorded_pairs};
use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::roots::Part;
use crate::table::{Reproduction, Table};
use rows::View;
use setup::{Limits, Setup, TEXT};

const RECORDED: Part = Part::fixed("recorded", 20);
const DEATHS: Part = Part::fixed("deaths", 20);
const LOSSY: Part = Part::fixed("lossy", 20);

/// Evaluation of datagrams on recorded and lossy links.
pub(super) struct Datagrams;

impl Paper for Datagrams {
    fn key(&self) -> &'static str {
        "datagrams"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Setup>::parse(TEXT)?;
        let (setup, limits) = (Setup::from_file(&file, context), Limits::from_file(&file)?);
        let mut result = Reproduction::default();
        judge_recorded_pairs(context, &setup, &limits, &mut result)?;
        let samples = context.sample(DEATHS, |root| cell::deaths(&setup, root))?;
        let title = "A path dies during a call";
        result.tables.push(Table::new("deaths", title, rows::deaths(&samples, &limits)));
        let samples = context.sample(LOSSY, |root| lossy::measure(&setup, root))?;
        let (tables, everything) = lossy::tables(&samples, &setup, &limits);
        result.tables.extend(tables);
        result.grids.push(everything);
        result.notes.push(
            "A case is a pair at one position in its recordings. Extra bytes are the frame bytes that both ends \
             retransmitted, divided by the bytes of all datagram frames sent for the first time. Frames that carry \
             only acknowledgments or requests have a separate column. Misses are totals over the cases of a half."
                .to_owned(),
        );
        Ok(result)
    }
}

fn judge_recorded_pairs(
    context: &Context<'_>,
    setup: &Setup,
    limits: &Limits,
    result: &mut Reproduction,
) -> anyhow::Result<()> {
    let Some(pairs) = recorded_pairs(context, "datagrams", result)? else { return Ok(()) };
    let view = |half| View { setup, limits, pairs: &pairs, half };
    let (samples, judged) = context.judge_part(
        RECORDED,
        |root| pairs.iter().map(|pair| cell::on_pair(context, setup, pair, root)).collect(),
        |samples| Ok(view(PairSubset::Judged).rows(samples)),
    )?;
    let count = |half| pairs.iter().filter(|pair| PairSubset::of_pair(&pair.name) == half).count();
    let title = format!("{} recorded pairs not used for tuning", count(PairSubset::Judged));
    result.tables.push(Table::new("recorded", title, judged));
    let title = format!("{} recorded pairs used for tuning", count(PairSubset::Tuned));
    let tuned = view(PairSubset::Tuned).rows(&samples);
    result.tables.push(Table::new("recorded-tuned", title, tuned));
    result.grids.extend([
        view(PairSubset::Judged).contestants(&samples),
        view(PairSubset::Tuned).contestants(&samples),
        rows::grid_by_pair(&samples, &pairs),
    ]);
    Ok(())
}
