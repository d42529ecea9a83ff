//! What becomes of images that are here.

use crate::registry::Registry;
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

#[test]
fn a_tag_that_moves_takes_its_old_layers_along_unless_a_box_lives_in_them() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        let push = |n: &str| {
            workshop.new_image(n);
            let tree = workshop.tree(&format!("tree{n}"));
            std::fs::create_dir_all(tree.join("bin")).expect("it is ours");
            std::fs::copy("/bin/busybox", tree.join("bin/busybox")).expect("everybody may read it");
            std::fs::write(tree.join("version"), n).expect("it is ours");
            workshop.add(n, &tree, "/");
            registry.push(&workshop, n, "moving:tag", &[]);
        };
        let name = registry.name("moving:tag");
        let read = ["--", "/bin/busybox", "cat", "/version"];
        let run = || ok(house, &[&["run", "--image", &name][..], &read].concat());
        push("one");
        ok(house, &["image", "pull", &name]);
        assert_eq!(run(), "one");
        push("two");
        assert_eq!(run(), "one", "it is pulled when somebody says so");
        ok(house, &["image", "pull", &name]);
        assert_eq!((run().as_str(), names(house, "layers").len()), ("two", 1));
        let id = ok(house, &["create", "--image", &name]);
        push("three");
        ok(house, &["image", "pull", &name]);
        assert_eq!(run(), "three");
        assert_eq!(ok(house, &[&["exec", id.trim_end()][..], &read].concat()), "two");
    });
}
