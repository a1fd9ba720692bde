//! Tables of text.

use std::fmt::Write;

/// A table whose columns are as wide as they must be; columns of figures stand to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let is_figure = |cell: &String| cell.starts_with(|first: char| first.is_ascii_digit());
    let of_figures = |column: usize| rows.iter().all(|row| is_figure(&row[column]));
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cell = |(column, cell): (usize, &String)| {
            let width = widths[column];
            if of_figures(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        };
        let cells: Vec<String> = line.iter().enumerate().map(cell).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
        if number == 0 {
            let total = widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
            let _ = writeln!(text, "{}", "-".repeat(total));
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn tables_line_up() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["a", "1", "x"]), row(["long one", "12345", "1 y"])];
        let expected = "\
name      count  note
---------------------
a             1  x
long one  12345  1 y

";
        assert_eq!(table(&["name", "count", "note"], &rows), expected);
    }
}
