//! An I/O server on several cores, at the reduced scale: it runs, gives the same digits twice, and
//! names what limits each row. No rate is asserted.

use benches::cores::{Scale, first_rows, rows};

#[test]
fn a_resource_is_at_its_limit_in_each_row_and_the_digits_repeat() {
    let found = rows(Scale::Reduced).unwrap();
    assert_eq!(found.len(), 2 * 2 * 2 * 2);
    for row in &found {
        println!("{row:?}");
    }
    for row in &found {
        assert!(row.requests_per_s > 0.0 && row.speed_up > 0.5, "{row:?}");
        assert!((0.9..1.1).contains(&row.limit_utilisation()), "{}: {row:?}", row.limit);
        assert!(row.utilisations.iter().all(|(_, part)| *part <= row.limit_utilisation()), "{row:?}");
    }
    let again = first_rows(Scale::Reduced).unwrap();
    assert_eq!(again, found[..again.len()]);
}
