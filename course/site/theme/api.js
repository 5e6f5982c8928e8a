// All names were once on this page: an old link to one of them leads on to the page of its room.
const lead = () => {
  const wanted = decodeURIComponent(location.hash.slice(1));
  for (let name = wanted; name; name = name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : "") {
    const link = document.getElementById(name)?.matches(".names tr") && document.getElementById(name).querySelector("a");
    if (link) return location.replace(`${link.href.split("#")[0]}#${wanted}`);
  }
};
addEventListener("hashchange", lead);
lead();
