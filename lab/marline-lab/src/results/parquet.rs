//! Tables as Parquet, written by the parquet crate's column writer without Arrow, which nothing else in this crate
//! needs.
//!
//! Every column may have unknown values (`OPTIONAL`). Text is UTF-8 with a dictionary, counts are unsigned 64-bit
//! integers, times are signed ones, numbers are doubles, flags are booleans. The file's metadata has the unit of
//! each column that has one, under `unit.COLUMN`. Equal rows give equal bytes.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

use super::cells::Cells;
use super::column::{Column, Values};
use super::table::Table;

/// Number of rows in a row group, which is held in memory while writing and is read as a whole.
const GROUP_ROWS: usize = 1 << 16;

/// A Parquet file for appending rows.
pub(super) struct ParquetFile {
    writer: SerializedFileWriter<File>,
    /// Rows of an incomplete group.
    waiting: Table,
}

impl ParquetFile {
    /// Creates a file with this table's columns.
    pub(super) fn create(file: &Path, like: &Table) -> anyhow::Result<ParquetFile> {
        let waiting = Table::new(like.name(), like.columns().to_vec());
        let fields: Result<Vec<_>, _> = waiting.columns().iter().map(field).collect();
        let schema = Type::group_type_builder(like.name()).with_fields(fields?).build()?;
        let with_unit = waiting.columns().iter().filter(|column| !column.unit().is_empty());
        let unit = |column: &Column| {
            KeyValue::new(format!("unit.{}", column.name()), column.unit().to_owned())
        };
        let properties = WriterProperties::builder()
            .set_created_by(format!("marline {}", env!("CARGO_PKG_VERSION")))
            .set_key_value_metadata(Some(with_unit.map(unit).collect()))
            .build();
        let opened = File::create(file).with_context(|| file.display().to_string())?;
        let writer = SerializedFileWriter::new(opened, Arc::new(schema), Arc::new(properties))?;
        Ok(ParquetFile { writer, waiting })
    }

    /// Appends rows.
    pub(super) fn append(
        &mut self,
        table: &Table,
        rows: std::ops::Range<usize>,
    ) -> anyhow::Result<()> {
        let (mut from, end) = (rows.start, rows.end);
        while from < end {
            let to = end.min(from + GROUP_ROWS - self.waiting.rows());
            self.waiting.append(table, from..to);
            from = to;
            if self.waiting.rows() == GROUP_ROWS {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the incomplete group and the end of the file.
    pub(super) fn close(mut self) -> anyhow::Result<()> {
        if !self.waiting.is_empty() {
            self.flush()?;
        }
        self.writer.close()?;
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        let mut group = self.writer.next_row_group()?;
        for column in self.waiting.columns() {
            let mut writer =
                group.next_column()?.context("the schema has fewer columns than the table")?;
            write(&mut writer, column)?;
            writer.close()?;
        }
        group.close()?;
        self.waiting = Table::new(self.waiting.name(), self.waiting.columns().to_vec());
        Ok(())
    }
}

fn field(column: &Column) -> Result<Arc<Type>, parquet::errors::ParquetError> {
    let (physical, logical) = match column.values() {
        Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Values::Count(_) => (Physical::INT64, Some(LogicalType::integer(64, false))),
        Values::Integer(_) => (Physical::INT64, Some(LogicalType::integer(64, true))),
        Values::Real(_) => (Physical::DOUBLE, None),
        Values::Flag(_) => (Physical::BOOLEAN, None),
    };
    Type::primitive_type_builder(column.name(), physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build()
        .map(Arc::new)
}

fn write(writer: &mut SerializedColumnWriter<'_>, column: &Column) -> anyhow::Result<()> {
    match column.values() {
        Values::Text(texts) => {
            let words: Vec<ByteArray> =
                texts.distinct_texts().iter().map(|word| ByteArray::from(word.as_str())).collect();
            let word = |number: u32| words[number as usize].clone();
            write_column::<ByteArrayType, u32>(writer, texts.numbers(), word)
        }
        // The bits of the unsigned number; the column's type is unsigned.
        Values::Count(cells) => write_column::<Int64Type, u64>(writer, cells, |value| value as i64),
        Values::Integer(cells) => write_column::<Int64Type, i64>(writer, cells, |value| value),
        Values::Real(cells) => write_column::<DoubleType, f64>(writer, cells, |value| value),
        Values::Flag(cells) => write_column::<BoolType, bool>(writer, cells, |value| value),
    }
}

/// Writes the known values of a column, and which rows have them.
fn write_column<D: DataType, T: Copy + Default>(
    writer: &mut SerializedColumnWriter<'_>,
    cells: &Cells<T>,
    of: impl Fn(T) -> D::T,
) -> anyhow::Result<()> {
    let levels: Vec<i16> = match cells.known() {
        Some(known) => known.iter().map(|known| i16::from(*known)).collect(),
        None => vec![1; cells.len()],
    };
    let known = cells.values().iter().zip(&levels).filter(|(_, level)| **level == 1);
    let values: Vec<D::T> = known.map(|(value, _)| of(*value)).collect();
    writer.typed::<D>().write_batch(&values, Some(&levels), None)?;
    Ok(())
}
