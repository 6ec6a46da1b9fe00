//! Pages of a listing.
//!
//! A page goes by its number, or by the key behind which it begins. The key is opaque to clients: it is the
//! numbers by which the listing is sorted.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::EventLogError;
use crate::event::StoredEvent;
use crate::limit::{LAST_PAGE, LONG_PAGE, PAGE, TEXT_PAGE, USUAL_LONG_PAGE, USUAL_PAGE};

/// A page as a client asks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// The number of the page, from 1.
    pub page: Option<u32>,
    /// Rows of a page.
    pub page_size: Option<u32>,
    /// The `nextAfter` of the page before.
    pub after: Option<String>,
}

/// How large the pages of a listing are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageSizes {
    /// 20, at most 100.
    Short,
    /// 200, at most 500.
    Long,
    /// 20, at most 50.
    Text,
}

/// The place behind which a page begins: the numbers that the listing is sorted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageCursor(pub(crate) Vec<i64>);

impl fmt::Display for PageCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(i64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

impl FromStr for PageCursor {
    type Err = EventLogError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split('.').map(str::parse);
        let numbers: Result<Vec<i64>, _> = numbers.collect();
        numbers.map(Self).map_err(|_| not_a_cursor())
    }
}

impl Serialize for PageCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

pub(crate) fn not_a_cursor() -> EventLogError {
    EventLogError::request(
        "after",
        "must be the `nextAfter` of a page of the same listing",
    )
}

/// A page that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paging {
    /// The number of the page, from 1.
    pub(crate) page: u32,
    /// Rows of a page.
    pub(crate) page_size: u32,
    /// Where the page begins instead, if given.
    pub(crate) after: Option<PageCursor>,
}

impl PageRequest {
    pub(crate) fn check(&self, sizes: PageSizes) -> Result<Paging, EventLogError> {
        let (usual, most) = match sizes {
            PageSizes::Short => (USUAL_PAGE, PAGE),
            PageSizes::Long => (USUAL_LONG_PAGE, LONG_PAGE),
            PageSizes::Text => (USUAL_PAGE, TEXT_PAGE),
        };
        let page = self.page.unwrap_or(1);
        if page == 0 || page > LAST_PAGE {
            let message = format!("is {page}, and must be 1 to {LAST_PAGE}");
            return Err(EventLogError::request("page", message));
        }
        let page_size = self.page_size.unwrap_or(usual);
        if page_size == 0 || page_size > most {
            let message = format!("is {page_size}, and must be 1 to {most}");
            return Err(EventLogError::request("pageSize", message));
        }
        if self.page.is_some() && self.after.is_some() {
            let message = "cannot be given together with `page`";
            return Err(EventLogError::request("after", message));
        }
        let after = self.after.as_deref().map(str::parse).transpose()?;
        Ok(Paging {
            page,
            page_size,
            after,
        })
    }
}

impl Paging {
    /// Rows before the page.
    pub(crate) fn offset(&self) -> i64 {
        match self.after {
            Some(_) => 0,
            None => i64::from(self.page - 1) * i64::from(self.page_size),
        }
    }

    /// Rows to read: one more than the page holds tells whether another page follows.
    pub(crate) fn limit(&self) -> i64 {
        i64::from(self.page_size) + 1
    }

    /// Cuts what was read to the page, and says whether another one follows.
    pub(crate) fn cut<T>(&self, rows: &mut Vec<T>) -> bool {
        let size = usize::try_from(self.page_size).unwrap_or(usize::MAX);
        let has_more = rows.len() > size;
        rows.truncate(size);
        has_more
    }
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventPage {
    /// The events.
    pub events: Vec<StoredEvent>,
    /// Events on all pages.
    pub total_count: i64,
    /// The number of the page.
    pub page: u32,
    /// Events of a full page.
    pub page_size: u32,
    /// Whether another page follows.
    pub has_more: bool,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after: Option<PageCursor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(page: Option<u32>, page_size: Option<u32>, after: Option<&str>) -> PageRequest {
        PageRequest {
            page,
            page_size,
            after: after.map(str::to_owned),
        }
    }

    #[test]
    fn a_page_has_its_usual_size_and_no_more_than_the_largest() {
        for (sizes, usual, most) in [
            (PageSizes::Short, 20, 100),
            (PageSizes::Long, 200, 500),
            (PageSizes::Text, 20, 50),
        ] {
            let of = |size| asked(None, size, None).check(sizes);
            assert_eq!(of(None).unwrap().page_size, usual);
            assert_eq!(of(Some(most)).unwrap().page_size, most);
            for wrong in [0, most + 1] {
                let error = of(Some(wrong)).unwrap_err();
                assert!(error.to_string().contains("pageSize"), "{error}");
            }
        }
        assert!(asked(Some(0), None, None).check(PageSizes::Short).is_err());
    }

    #[test]
    fn a_page_goes_by_its_number_or_by_a_key() {
        let third = asked(Some(3), Some(10), None)
            .check(PageSizes::Short)
            .unwrap();
        assert_eq!((third.offset(), third.limit()), (20, 11));
        let behind = asked(None, None, Some("17.-3"))
            .check(PageSizes::Short)
            .unwrap();
        assert_eq!(behind.after, Some(PageCursor(vec![17, -3])));
        assert_eq!(behind.after.unwrap().to_string(), "17.-3");
        for (page, after) in [(Some(2), "1.2"), (None, "x"), (None, "")] {
            assert!(
                asked(page, None, Some(after))
                    .check(PageSizes::Short)
                    .is_err()
            );
        }
    }

    #[test]
    fn one_row_more_than_a_page_tells_of_the_next() {
        let paging = asked(None, Some(2), None).check(PageSizes::Short).unwrap();
        for (read, expect) in [(1, false), (2, false), (3, true)] {
            let mut rows: Vec<u8> = vec![0; read];
            assert_eq!(paging.cut(&mut rows), expect);
            assert!(rows.len() <= 2);
        }
    }
}
