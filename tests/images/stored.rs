//! What becomes of images that are here.

use crate::workshop::{Workshop, path};
use crate::{each_mode, names, ok, readable, refused};

#[test]
fn an_image_goes_with_its_layers_and_not_with_those_of_others() {
    each_mode(|house| {
        let workshop = Workshop::new(house);
        workshop.distroless("one");
        readable(house, &workshop.layout());
        let layout = path(&workshop.layout());
        ok(house, &["image", "import", &layout, "--name", "a"]);
        ok(house, &["image", "import", &layout, "--name", "b"]);
        ok(house, &["image", "remove", "a"]);
        assert!(ok(house, &["run", "--image", "b"]).starts_with("hello"));
        ok(house, &["image", "remove", "b"]);
        assert_eq!(names(house, "layers"), Vec::<String>::new());
        assert!(refused(house, &["image", "remove", "b"]).contains("there is no image"));
        assert_eq!(ok(house, &["image", "list", "--json"]), "[]\n");
    });
}

#[test]
fn an_image_that_a_box_lives_in_stays() {
    each_mode(|house| {
        let workshop = Workshop::new(house);
        workshop.debian("one");
        readable(house, &workshop.layout());
        ok(house, &["image", "import", &path(&workshop.layout()), "--name", "a"]);
        let id = ok(house, &["create", "--image", "a", "--user", "0"]);
        let id = id.trim_end();
        assert!(refused(house, &["image", "remove", "a"]).contains("in use by box"));
        assert_eq!(ok(house, &["exec", id, "--", "cat", "/srv/data/second"]), "of the second layer\n");
        // What the box writes is the box's.
        let write = "echo x > /tmp/x; echo y > /srv/app/y 2>/dev/null; ls /tmp";
        assert_eq!(ok(house, &["exec", id, "--", "sh", "-c", write]), "x\n");
        ok(house, &["kill", id]);
        assert_eq!(ok(house, &["run", "--image", "a", "--", "ls", "/tmp"]), "");
        ok(house, &["image", "remove", "a"]);
        assert_eq!(names(house, "layers"), Vec::<String>::new());
    });
}
