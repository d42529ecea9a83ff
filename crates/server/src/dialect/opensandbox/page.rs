//! Pages of lists.

use super::fault::{Answer, Fault};
use super::model::Pagination;
use super::query::Query;
use crate::limits::{PAGE, PAGE_MAX};

/// Which page is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    number: usize,
    size: usize,
}

impl Page {
    pub(crate) fn of(query: &Query) -> Answer<Page> {
        let number = query.number("page")?.unwrap_or(1) as usize;
        let size = query.number("pageSize")?.unwrap_or(PAGE as u64) as usize;
        if number < 1 || !(1..=PAGE_MAX).contains(&size) {
            return Err(Fault::invalid(format!(
                "page has to be at least 1, and pageSize from 1 to {PAGE_MAX}"
            )));
        }
        Ok(Page { number, size })
    }

    /// What of all is on it.
    pub(crate) fn cut<T>(self, all: Vec<T>) -> (Vec<T>, Pagination) {
        let total = all.len();
        let total_pages = total.div_ceil(self.size);
        let pagination = Pagination {
            page: self.number,
            page_size: self.size,
            total_items: total,
            total_pages,
            has_next_page: self.number < total_pages,
        };
        let items =
            all.into_iter().skip((self.number - 1).saturating_mul(self.size)).take(self.size).collect();
        (items, pagination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str, items: &[usize], pages: usize, next: bool) {
        let (found, told) = Page::of(&Query::parse(query)).unwrap().cut((0..5).collect());
        assert_eq!(
            (found.as_slice(), told.total_items, told.total_pages, told.has_next_page),
            (items, 5, pages, next)
        );
    }

    #[test]
    fn lists_are_cut_into_pages() {
        check("", &[0, 1, 2, 3, 4], 1, false);
        check("pageSize=2", &[0, 1], 3, true);
        check("pageSize=2&page=3", &[4], 3, false);
        check("pageSize=2&page=9", &[], 3, false);
        check("page=18446744073709551615&pageSize=200", &[], 1, false);
        for bad in ["page=0", "pageSize=0", "pageSize=201", "page=x", "page=-1"] {
            assert!(Page::of(&Query::parse(bad)).is_err(), "{bad}");
        }
    }
}
