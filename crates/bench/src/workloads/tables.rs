//! What queries over the tables have to answer, computed without a database.

/// Customers are of so many regions.
pub(super) const REGIONS: u64 = 7;

/// A line of the join's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Region {
    pub(super) region: i64,
    pub(super) orders: i64,
    pub(super) amount: i64,
}

/// The join's answer for so many orders.
pub(super) fn region_sums(orders: u64, customer_of: impl Fn(u64) -> u64) -> Vec<Region> {
    let mut regions: Vec<_> = (0..).take(7).map(|region| Region { region, orders: 0, amount: 0 }).collect();
    for id in 1..=orders {
        let region = usize::try_from(customer_of(id) % REGIONS).unwrap_or(0);
        regions[region].orders += 1;
        regions[region].amount += i64::try_from((id * 31337) % 1000).unwrap_or(0);
    }
    regions.retain(|region| region.orders > 0);
    regions
}
