use std::path::PathBuf;

use ::parquet::file::reader::{FileReader as _, SerializedFileReader};
use ::parquet::record::Field;

use super::*;
use crate::experiment::Stack;
use crate::experiment::file::ExperimentFile;
use crate::runs::{Job, Record, Series, Store, Summary};

const TEXT: &str = "\
warm_up = '450ms'
[[path]]
name = 'wifi'
link = 'rate=20M,delay=5ms,loss=3%'
[[path]]
name = 'lte'
link = 'rate=10M,delay=40ms'
[workload]
kind = 'bursts'
bytes = ['5kB', '20kB']
gap = ['50ms', '150ms']
count = 12
[[variant]]
name = 'default'
[[variant]]
name = 'both, twice'
scheduler = 'redundant'
";

fn scratch(name: &str) -> PathBuf {
    let place = std::env::temp_dir().join(format!("marline-results-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory");
    place
}

fn series(place: &std::path::Path) -> (Vec<Job>, Vec<Record>) {
    let file = ExperimentFile::from_toml("x.toml", TEXT).expect("file");
    let jobs = Job::series(&file.experiment, &file.lanes(&[Stack::Sim]).expect("lanes"), 3);
    let store = Store::open(&place.join("runs"), false).expect("store");
    let series = Series { store: &store, jobs: 2, instance: "none".to_owned(), files: None };
    let records = series.run(&jobs, &|_| {}).expect("run");
    (jobs, records)
}

/// The documented rule (docs/research/lab.md) in an independent form: by counting instead of interpolating.
fn by_the_book(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    let h = share * (values.len() as f64 - 1.0);
    let (below, above) = (values[h.floor() as usize], values[h.ceil() as usize]);
    below + (h - h.floor()) * (above - below)
}

#[test]
fn the_tables_quantiles_are_those_of_the_counted_messages_in_the_file() {
    let place = scratch("quantiles");
    let (jobs, records) = series(&place);
    let summary = Summary::from_runs(&jobs, &records);
    summary.write(&place, &[Format::Csv]).expect("files");
    let text = std::fs::read_to_string(place.join("messages.csv")).expect("messages");
    std::fs::remove_dir_all(&place).expect("clean up");
    let mut lines =
        text.replace("\"both, twice\"", "twice").lines().map(str::to_owned).collect::<Vec<_>>();
    let heading = lines.remove(0);
    assert_eq!(heading, "stack,variant,seed,index,bytes,counted,sent_ms,latency_ms,least_ms");
    let mut warm_up = 0;
    for lane in &summary.lanes {
        let mut counted = Vec::new();
        for line in &lines {
            let fields: Vec<&str> = line.split(',').collect();
            if !lane.variant.ends_with(fields[1]) {
                continue;
            }
            let sent_ms: f64 = fields[6].parse().expect("a number");
            assert_eq!(fields[5] == "1", sent_ms >= 450.0, "{line}");
            if fields[5] == "1" {
                counted.push(fields[7].parse().expect("a number"));
            } else {
                warm_up += 1;
            }
        }
        let of = &lane.latency;
        assert_eq!(counted.len(), of.count);
        for (share, said) in [(0.5, of.p50_ms), (0.95, of.p95_ms), (0.99, of.p99_ms)] {
            let ours = by_the_book(counted.clone(), share);
            assert!((ours - said).abs() < 1e-9, "{} {share}: {ours} {said}", lane.variant);
        }
    }
    assert!(warm_up > 10, "{warm_up}");
}

fn shown(field: &Field) -> String {
    match field {
        Field::Null => String::new(),
        Field::Str(text) => text.clone(),
        Field::ULong(value) => value.to_string(),
        Field::Long(value) => value.to_string(),
        Field::Double(value) => value.to_string(),
        Field::Bool(value) => u8::from(*value).to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn parquet_and_csv_have_the_same_rows() {
    let place = scratch("parquet");
    let (jobs, mut records) = series(&place);
    // A run that failed has blanks, and a warm-up has no bound.
    records[5] = Record::failed("also the second".to_owned());
    let summary = Summary::from_runs(&jobs, &records);
    summary.write(&place, &Format::ALL).expect("files");
    for table in ["messages", "runs"] {
        let csv = std::fs::read_to_string(place.join(format!("{table}.csv"))).expect("csv");
        let file = std::fs::File::open(place.join(format!("{table}.parquet"))).expect("parquet");
        let reader = SerializedFileReader::new(file).expect("a parquet file");
        let schema = reader.metadata().file_metadata().schema().get_fields().to_vec();
        let names: Vec<&str> = schema.iter().map(|field| field.name()).collect();
        assert_eq!(csv.lines().next(), Some(names.join(",").as_str()));
        let mut rows = reader.get_row_iter(None).expect("rows");
        for line in csv.lines().skip(1) {
            let row = rows.next().expect("as many rows").expect("a row");
            let row: Vec<String> =
                row.get_column_iter().map(|(_, f)| csv_field(&shown(f))).collect();
            assert_eq!(row.join(","), line);
        }
        assert!(rows.next().is_none());
        let units = reader.metadata().file_metadata().key_value_metadata().expect("units");
        assert!(units.iter().any(|unit| unit.value.as_deref() == Some("ms")), "{units:?}");
    }
    // Writing them again gives the same bytes.
    let read = || std::fs::read(place.join("messages.parquet")).expect("parquet");
    let first = read();
    summary.write(&place, &[Format::Parquet]).expect("files");
    assert!(first == read());
    std::fs::remove_dir_all(&place).expect("clean up");
}

#[test]
fn files_have_a_bound_and_groups_are_whole() {
    let place = scratch("bound");
    let mut table = Table::new("numbers", vec![Column::integer("value", ""), Column::text("word")]);
    for value in 0..40_000_i64 {
        let word = if value % 7 == 0 { None } else { Some(["a", "b"][value as usize % 2]) };
        table.push([(-value).into(), word.into()]);
    }
    let mut sheets = Sheets::create(&place, &table, &Format::ALL, 150_000).expect("files");
    (0..4).for_each(|_| sheets.append(&table, 1).expect("rows"));
    assert_eq!(sheets.close().expect("files"), Sheet { rows: 150_000, left_out: 10_004 });
    let file = std::fs::File::open(place.join("numbers.parquet")).expect("parquet");
    let reader = SerializedFileReader::new(file).expect("a parquet file");
    let groups: Vec<i64> = reader.metadata().row_groups().iter().map(|g| g.num_rows()).collect();
    assert_eq!(groups, [65_536, 65_536, 18_928]);
    let csv = std::fs::read_to_string(place.join("numbers.csv")).expect("csv");
    let rows: Vec<String> = reader
        .get_row_iter(None)
        .expect("rows")
        .map(|row| {
            row.expect("a row")
                .get_column_iter()
                .map(|(_, f)| shown(f))
                .collect::<Vec<_>>()
                .join(",")
        })
        .collect();
    assert!(csv.lines().skip(1).eq(rows.iter().map(String::as_str)));
    std::fs::remove_dir_all(&place).expect("clean up");
}

#[test]
fn a_format_that_does_not_exist_is_an_error_that_says_which_do() {
    let error = "excel".parse::<Format>().expect_err("no such format");
    assert_eq!(error.to_string(), "unknown format `excel`; known: csv, parquet");
}
